"""``python -m dlperf_hpc.hook [options] train.py ...``: times a PyTorch program's optimizer steps.

The program runs as Python would run it, in this process. An iteration is one step of its first
optimizer, seen by ``torch.optim.optimizer.register_optimizer_step_post_hook``. Not seen: optimizers
outside torch's classes, and steps inside CUDA graphs.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib.machinery
import io
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from dlperf_hpc import leave_current_directory
from dlperf_hpc.errors import DlperfError
from dlperf_hpc.timer.config import fault
from dlperf_hpc.timer.timer import Timer

_OPTIMIZER = "torch.optim.optimizer"
_UNSEEN = (
    "optimizers outside torch.optim.Optimizer, and steps inside CUDA graphs, are not seen;"
    " a launcher stands before the hook: torchrun --no-python python -m dlperf_hpc.hook train.py"
)

_NUMBERS = {
    "batch-size": "samples of one process in one optimizer step",
    "global-batch": "samples of all processes in one optimizer step",
    "warmup": "optimizer steps before the window (20)",
    "iterations": "optimizer steps of the window (100)",
    "seq-len": "tokens of a sample",
}


class OnImport(MetaPathFinder):
    """Calls ``found`` with a module as soon as it is imported, and is gone."""

    def __init__(self, name: str, found: Callable[[ModuleType], object]) -> None:
        self._name, self._found = name, found

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, whose loader then tells us too."""
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        specs = (each.find_spec(fullname, path, target) for each in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._found(module)

            with contextlib.suppress(AttributeError, TypeError):  # then no step is seen
                loader.exec_module = exec_module
        return spec


class OptimizerSteps:
    """The optimizer steps of a program: those of its first optimizer are the timer's iterations."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.seen = 0
        self.failure = ""
        self._first: weakref.ref[Any] | None = None
        self._second = False

    def watch(self, module: ModuleType) -> None:
        """Be told of every optimizer step from now on."""
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            self.failure = "this torch has no register_optimizer_step_post_hook: take 2.1 or newer"
        else:
            self.harmless(lambda: register(self.after_step))

    def harmless(self, call: Callable[[], object]) -> None:
        """If a call raises there is no number; that does not end the program."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the program is not ours to end
            self.failure = fault(error)

    def after_step(self, optimizer: Any, *_: object) -> None:
        """An optimizer has made a step."""
        self.harmless(lambda: self._count(optimizer))

    def _count(self, optimizer: Any) -> None:
        if self._first is None:
            self._first, self._name = weakref.ref(optimizer), type(optimizer).__name__
        if self.failure:
            return
        if self._first() is not optimizer:
            if not self._second:
                self._second = True
                other = type(optimizer).__name__
                self.timer.note(f"{other} steps too: the steps of {self._name}, the first, count")
            return
        self.seen += 1
        self.timer.step()

    def report(self, error: BaseException | None) -> None:
        """The program has ended: print the line, or why there is no number."""
        seen = f"{self.seen or 'no'} optimizer step{'s' * (self.seen != 1)} seen; {_UNSEEN}"
        self.harmless(lambda: self.timer.close(error, self.failure or seen))
        text = self.timer.told or f"dlperf_hpc: no number: {self.failure}\n"
        with contextlib.suppress(Exception):  # nobody may be reading any more, or it is closed
            if self.timer.rank == 0:
                sys.stderr.write(text)
                sys.stderr.flush()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dlperf_hpc.hook",
        description=__doc__.partition("\n")[0],
        allow_abbrev=False,
    )
    for name, help_text in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=help_text)
    parser.add_argument("--model", help="what the report calls the model")
    parser.add_argument("--precision", help="fp32, bf16 ...: what the report calls it")
    parser.add_argument("--logs", metavar="DIR", help="where the log goes (logs/timer)")
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the program is a module, as in python -m"
    )
    parser.add_argument("program", help="the program, a file; and its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> None:
    """The program, as Python runs it: its arguments, its place in sys.path, as ``__main__``."""
    sys.argv[:] = [arguments.program, *arguments.arguments]
    safe = getattr(sys.flags, "safe_path", False)
    if arguments.module:
        if not safe:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(arguments.program):  # a directory or an archive with a __main__
        runpy.run_path(arguments.program, run_name="__main__")
        return
    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments.program)))
    _run_file(os.path.abspath(arguments.program))


def _run_file(path: str) -> None:
    """A file as ``__main__``, which it stays as the process ends. (runpy would take it away again
    before that, and put the whole path into sys.argv.)"""
    main = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program and report; 2 for options that cannot be. What the program raises, also
    SystemExit, passes through."""
    arguments = _arguments(argv)
    if not arguments.module and not os.path.exists(arguments.program):
        print(f"error: {arguments.program}: there is no such file", file=sys.stderr)
        return 2
    of_program = ("module", "program", "arguments")
    keywords = {key: value for key, value in vars(arguments).items() if key not in of_program}
    try:
        steps = OptimizerSteps(Timer(**keywords, framework="hook", stop=False, quiet=True))
    except DlperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.meta_path.insert(0, OnImport(_OPTIMIZER, steps.watch))
    try:
        _run(arguments)
    except SystemExit as error:
        steps.report(error if error.code not in (None, 0) else None)
        raise
    except BaseException as error:
        steps.report(error)
        raise
    steps.report(None)
    return 0


if __name__ == "__main__":
    leave_current_directory()
    sys.exit(main())
