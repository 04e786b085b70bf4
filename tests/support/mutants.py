"""``make mutants N=200``: does a test of a room fail when a line of the room is wrong?

N small faults are chosen by a seed, from every room as many as its share of places, at least one.
Each is put into a copy of a checkout, and the room's own tests run there until one fails.

Why not a library: mutmut makes all mutants of a package and takes no sample; cosmic-ray has one
test command for all, so that 200 mutants would run the whole unit tests 200 times.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from metrics import walk
from places import ROOT

# Rooms without tests of their own name, and who tests them.
_TESTED_BY = {
    **{"published": "analysis", "launch": "engines"},
    **dict.fromkeys(("__init__", "source"), "test_public_api.py"),
    **dict.fromkeys(("__main__", "errors", "sweep"), "cli"),
}
# Modules whose tests need a framework's environment, and folders of tests that need more.
_APART = ("train/torch/", "train/tensorflow/")
_NEEDING_MORE = (
    *("browser", "campaigns", "containers", "frameworks"),
    *("long", "mpi", "slurm", "support"),
)
_TIMEOUT_S = 600.0  # of one room's tests
_SWAPS = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.And: (r"\band\b", "or"),
    ast.Or: (r"\bor\b", "and"),
}
_DELETED = (ast.Assign, ast.AugAssign, ast.Raise)


@dataclass(frozen=True)
class Mutant:
    """One fault: bytes of a file, between two offsets, and what stands in their place."""

    path: str
    line: int
    start: int
    end: int
    new: str

    @property
    def room(self) -> str:
        return self.path.split("/")[1].removesuffix(".py")

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]

    def shown(self, text: bytes) -> str:
        old = " ".join(text[self.start : self.end].decode().split())
        return f"{self.path}:{self.line}: {old[:60]!r} -> {self.new[:60]!r}"


class _File:
    """The mutants of one file, by the offsets of its nodes."""

    def __init__(self, path: str, text: bytes) -> None:
        self._path, self._text = path, text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutants(self) -> Iterator[Mutant]:
        """Every fault that a function of the file may have."""
        for function in ast.walk(ast.parse(self._text)):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for statement in function.body:
                    for node in _outside_texts(statement):
                        yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._swapped(node.ops[0], node.left, node.comparators[0])
        elif isinstance(node, ast.BinOp):
            yield from self._swapped(node.op, node.left, node.right)
        elif isinstance(node, ast.BoolOp):
            yield from self._swapped(node.op, node.values[0], node.values[1])
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            start, end = self._span(node.test)
            yield self._made(node.test, f"not ({self._text[start:end].decode()})")
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield self._made(node, _other(node.value))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield self._made(node, "return None")
        elif isinstance(node, _DELETED) or _is_call(node):
            yield self._made(node, "pass")

    def _swapped(self, operator: ast.AST, left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        if type(operator) not in _SWAPS:
            return
        pattern, new = _SWAPS[type(operator)]
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(pattern.encode(), self._text[start:end])
        if found is not None:
            yield Mutant(self._path, left.lineno, start + found.start(), start + found.end(), new)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
        start = self._starts[first - 1] + getattr(node, "col_offset", 0)
        return start, self._starts[last - 1] + getattr(node, "end_col_offset", 0)

    def _made(self, node: ast.AST, new: str) -> Mutant:
        return Mutant(self._path, getattr(node, "lineno", 1), *self._span(node), new)


def _outside_texts(statement: ast.stmt) -> list[ast.AST]:
    """The nodes whose places are right: before Python 3.12 not those in f-strings."""
    nodes = walk(statement)
    texts = (node for node in nodes if isinstance(node, ast.JoinedStr))
    inside = {id(node) for text in texts for node in walk(text)}
    return [node for node in nodes if id(node) not in inside]


def _other(value: bool | float) -> str:
    return str(not value) if isinstance(value, bool) else str(value + 1)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def chosen(tree: Path, number: int, seed: int) -> list[Mutant]:
    """``number`` mutants of a checkout, by room; more where there are more rooms than that."""
    rooms: dict[str, set[Mutant]] = defaultdict(set)
    for path in sorted((tree / "dlperf_hpc").rglob("*.py")):
        name = path.relative_to(tree).as_posix()
        if not name.removeprefix("dlperf_hpc/").startswith(_APART):
            for mutant in _File(name, path.read_bytes()).mutants():
                rooms[mutant.room].add(mutant)
    total = sum(map(len, rooms.values()))
    chance = random.Random(seed)
    picked: list[Mutant] = []
    for _, mutants in sorted(rooms.items()):
        share = max(1, round(number * len(mutants) / total))
        inorder = sorted(mutants, key=lambda m: (m.path, m.start, m.end, m.new))
        picked += chance.sample(inorder, share)
    return picked


def tests_of(tree: Path, room: str) -> list[str]:
    """The tests that a room has of its own, without a cluster and without a framework."""
    names = (room, f"test_{room}.py", _TESTED_BY.get(room, room))
    found = {path.relative_to(tree) for name in names for path in tree.glob(f"tests/*/{name}")}
    own = [path.as_posix() for path in found if path.parts[1] not in _NEEDING_MORE]
    assert own, f"no test is named after {room}: name who tests it in _TESTED_BY"
    return sorted(own, reverse=True)  # tests/unit first: the others take longer


class Copy:
    """A copy of a checkout's tracked files, in which tests run."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.place = place
        argv = ["git", "-C", str(tree), "ls-files", "-z"]
        names = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, names):
            if (tree / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, place / name)

    def passes(self, tests: Sequence[str], mutant: Mutant | None = None) -> bool:
        """Whether tests pass within their time, with a fault, which is taken back."""
        if mutant is None:
            return self._passes(tests)
        path = self.place / mutant.path
        text = path.read_bytes()
        try:
            _write(path, mutant.applied(text))
            return self._passes(tests)
        finally:
            _write(path, text)

    def _passes(self, tests: Sequence[str]) -> bool:
        argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", *tests]
        env = {**os.environ, "PYTHONPATH": str(self.place), "OMP_NUM_THREADS": "1"}
        with (
            open(os.devnull, "w") as nowhere,
            subprocess.Popen(
                argv,
                cwd=self.place,
                env=env,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
            ) as process,
        ):
            try:
                return process.wait(_TIMEOUT_S) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return False


def _write(path: Path, text: bytes) -> None:
    """Write a file whose time differs from that of earlier bytecode, also within a second."""
    before = path.stat().st_mtime
    path.write_bytes(text)
    os.utime(path, (before + 2, before + 2))


def run(tree: Path, mutants: Sequence[Mutant], jobs: int) -> list[tuple[Mutant, bool]]:
    """Print each mutant's end as it comes; each mutant, and whether it survived.

    A room whose tests fail without a mutant is left out: they would kill all.
    """
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    tests = {mutant.room: tests_of(tree, mutant.room) for mutant in mutants}

    def passes(room: str, mutant: Mutant | None = None) -> bool:
        copy = copies.get()
        try:
            passed = copy.passes(tests[room], mutant)
        finally:
            copies.put(copy)
        if mutant is not None:
            end = "SURVIVED" if passed else "killed"
            print(f"{end:8} {mutant.shown((tree / mutant.path).read_bytes())}", flush=True)
        return passed

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(Copy(tree, Path(name, str(number))))
        sound = {room for room, good in zip(tests, pool.map(passes, tests)) if good}
        if tests.keys() - sound:
            print(f"left out, tests fail without a mutant: {', '.join(tests.keys() - sound)}")
        kept = [mutant for mutant in mutants if mutant.room in sound]
        lives = list(pool.map(passes, (mutant.room for mutant in kept), kept))
    return list(zip(kept, lives))


def main() -> None:
    """Print each mutant's end, then how many of each room were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--room", action="append", help="of these rooms alone")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    arguments = parser.parse_args()
    mutants = chosen(arguments.tree, arguments.number, arguments.seed)
    if arguments.room:
        mutants = [mutant for mutant in mutants if mutant.room in arguments.room]
    ends = run(arguments.tree, mutants, arguments.jobs)
    rooms, killed = (
        Counter(m.room for m, _ in ends),
        Counter(m.room for m, lives in ends if not lives),
    )
    for room, number in sorted(rooms.items()):
        print(f"{room:12} {killed[room]:4} of {number:4} killed")
    print(f"{'all':12} {killed.total():4} of {rooms.total():4} killed")


if __name__ == "__main__":
    main()
