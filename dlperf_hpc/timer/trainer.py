"""``TrainerTimer``: a Timer as a callback of HuggingFace's Trainer.

``Trainer(..., callbacks=[TrainerTimer()])``. The events are those of transformers.TrainerCallback:
``on_substep_end`` after a micro-batch, ``on_step_end`` after the one that ends in an optimizer
step.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dlperf_hpc.timer.timer import Timer


class TrainerTimer(TrainerCallback):  # type: ignore[misc]
    """Times the Trainer's iterations (micro-batches). Batch size and accumulation are the
    Trainer's; the keywords are Timer's. The Trainer stops after the window unless ``stop=False``.

    There is no number where a process drives several GPUs (DataParallel), and where an epoch ends
    within the window whose last batch may be smaller (``dataloader_drop_last=False``). The loss is
    not known: the Trainer tells its callbacks a rounded mean only.
    """

    def __init__(self, **keywords: Any) -> None:
        self._keywords = {"framework": "trainer", **keywords}
        self._stop = keywords.get("stop", True)
        self.timer: Timer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Make the Timer, with what the Trainer was asked for."""
        load = {
            "batch_size": args.per_device_train_batch_size,
            "accumulation": args.gradient_accumulation_steps,
        }
        self.timer = Timer(**{**load, **self._keywords})
        if args.n_gpu > 1:
            self.timer.refuse(f"one process drives {args.n_gpu} GPUs: start one for each GPU")

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """A micro-batch that ends in no optimizer step."""
        self._iteration(control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """A micro-batch that ends in an optimizer step."""
        if self.timer is not None:
            self.timer.optimizer_step()
        self._iteration(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """The last batch of an epoch may have been a smaller one."""
        if self.timer is not None and self.timer.open and not args.dataloader_drop_last:
            self.timer.refuse(
                "an epoch ended within the window, and its last batch may be smaller: set"
                " dataloader_drop_last=True, or take a window that fits into an epoch"
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Training has ended, maybe before the window was over."""
        if self.timer is not None:
            self.timer.close()

    def _iteration(self, control: TrainerControl) -> None:
        if self.timer is not None and self.timer.step() and self._stop:
            control.should_training_stop = True
