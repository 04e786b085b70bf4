"""Stamps beside a program that knows nothing of them, for ``public_programs.py``.

In a process with STAMPS in its environment, the moments in which iterations ended are written into
a file of that directory, in nanoseconds since 1970, a line each: the steps of the first optimizer
of PyTorch's that steps, or the ends of Keras' batches.
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

    def stamp(self) -> None:
        if self.file is None:
            name = f"{os.environ.get('RANK', '0')}.{os.getpid()}.stamps"
            path = os.path.join(os.environ["STAMPS"], name)
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self.file, b"%d\n" % time.time_ns())

    def of_steps(self, module: Any) -> None:
        """Of ``torch.optim.optimizer``."""

        def stepped(optimizer: Any, *_: object) -> None:
            if self.first is None:
                self.first = optimizer
            if self.first is optimizer:
                self.stamp()

        module.register_optimizer_step_post_hook(stepped)

    def of_batches(self, module: Any) -> None:
        """Of ``keras.src.callbacks.callback_list``."""
        ended = module.CallbackList.on_train_batch_end

        @functools.wraps(ended)
        def wrapped(*words: Any, **named: Any) -> Any:
            self.stamp()
            return ended(*words, **named)

        module.CallbackList.on_train_batch_end = wrapped


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
