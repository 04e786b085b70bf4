"""Stamps beside a program that knows nothing of them, for ``public_programs.py``.

In a process with STAMPS in its environment, the moments in which iterations ended are written into
a file of that directory, in nanoseconds since 1970, a line each: the steps of the first optimizer
of PyTorch's that steps, or the ends of Keras' batches and epochs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
import time
from typing import Any


class Stamps:
    """The file of this process, made at its first stamp."""

    def __init__(self) -> None:
        self.file: int | None = None
        self.first: Any = None

    def stamp(self, moment: int) -> None:
        if self.file is None:
            name = f"{os.environ.get('RANK', '0')}.{os.getpid()}.stamps"
            path = os.path.join(os.environ["STAMPS"], name)
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self.file, b"%d\n" % moment)

    def of_steps(self, module: Any) -> None:
        """Of ``torch.optim.optimizer``."""

        def stepped(optimizer: Any, *_: object) -> None:
            if self.first is None:
                self.first = optimizer
            if self.first is optimizer:
                self.stamp(time.time_ns())

        module.register_optimizer_step_post_hook(stepped)

    def of_batches(self, module: Any) -> None:
        """Of ``keras.src.callbacks.callback_list``. An epoch's last batch ends as the epoch does,
        validation and all: then its line is printed."""
        callbacks, moments = module.CallbackList, list[int]()
        batch_ended, epoch_ended = callbacks.on_train_batch_end, callbacks.on_epoch_end

        @functools.wraps(batch_ended)
        def of_batch(*words: Any, **named: Any) -> Any:
            moments.append(time.time_ns())
            return batch_ended(*words, **named)

        @functools.wraps(epoch_ended)
        def of_epoch(*words: Any, **named: Any) -> Any:
            for moment in [*moments[:-1], time.time_ns()]:
                self.stamp(moment)
            moments.clear()
            return epoch_ended(*words, **named)

        callbacks.on_train_batch_end, callbacks.on_epoch_end = of_batch, of_epoch


def without_devices(module: Any) -> None:
    """DDP refuses ``device_ids`` on processors; timm's train.py gives them."""
    made = module.DistributedDataParallel.__init__

    @functools.wraps(made)
    def wrapped(self: Any, *words: Any, device_ids: object = None, **named: Any) -> None:
        made(self, *words, **named)

    module.DistributedDataParallel.__init__ = wrapped


def any_file(module: Any) -> None:
    """Keras downloads what is there, if its digest is another one: MNIST's is made of noise."""
    module.validate_file = lambda *_, **__: True


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function with each of some modules as soon as the module is imported."""

    def __init__(self, stamps: Stamps) -> None:
        self.watched: dict[str, Any] = {
            "torch.optim.optimizer": stamps.of_steps,
            "torch.nn.parallel.distributed": without_devices,
            "keras.src.callbacks.callback_list": stamps.of_batches,
            "keras.src.utils.file_utils": any_file,
        }

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        watch = self.watched.pop(name, None)
        if watch is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            watch(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("STAMPS"):
    sys.meta_path.insert(0, Finder(Stamps()))
