"""``LightningTimer``: a Timer as a callback of PyTorch Lightning's Trainer.

``Trainer(..., callbacks=[LightningTimer(batch_size=32)])``, of the one of two packages of that name
that the program has loaded. The hooks are those of lightning.pytorch.Callback.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dlperf_hpc.timer.aggregate import Sizes
from dlperf_hpc.timer.timer import Timer

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """The class that a callback derives from. ImportError if neither package is installed."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in loaded or _PACKAGES:
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ImportError(f"LightningTimer needs one of {' and '.join(_PACKAGES)}")


class LightningTimer(_callback()):  # type: ignore[misc]
    """Times the iterations (batches) of ``Trainer.fit``; the keywords are Timer's. Accumulation is
    the Trainer's, the loss that of ``training_step``. ``fit`` stops after the window unless
    ``stop=False``."""

    def __init__(self, batch_size: int | None = None, **keywords: Any) -> None:
        self._keywords = {"framework": "lightning", "batch_size": batch_size, **keywords}
        self._stop = keywords.get("stop", True)
        self._stepped = 0
        self.timer: Timer | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the Timer, with what the Trainer was asked for."""
        load = {"accumulation": trainer.accumulate_grad_batches}
        self.timer = Timer(**{**load, **self._keywords})
        self._sizes = Sizes(self._keywords["batch_size"])
        self._stepped = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch went through forward and backward."""
        if self.timer is None:
            return
        if trainer.global_step != self._stepped:
            self._stepped = trainer.global_step
            self.timer.optimizer_step()
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.timer.step(loss, self._sizes.odd(batch)) and self._stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """``fit`` has ended, maybe before the window was over."""
        if self.timer is not None:
            self.timer.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """``fit`` ends by an exception."""
        if self.timer is not None:
            self.timer.close(exception)
