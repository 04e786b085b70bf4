"""``make mutants N=200``: does a test fail when a line of the package is wrong?

N small faults are chosen by a seed, from every room as many as its share of places, at least one.
Each is put into a copy of a checkout, and there the tests run that run its line, until one fails:
which they are is known from a run with coverage's contexts. A line that only child processes run
has the tests of its room.

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

from coverage import CoverageData
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
_TIMEOUT_S = 600.0  # of one mutant's tests
_MOST_TESTS = 40  # functions of tests: a line that hundreds run would take minutes
_STATEMENT = 20  # lines before a mutant's own in which its statement begins
_NO_TESTS = 5  # pytest's exit code where all were left out
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
        elif isinstance(node, ast.Return) and not _is_none(node.value):
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


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


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


class Covering:
    """Which tests run a line, by the data that a run of ``pytest --cov-context=test`` has left."""

    def __init__(self, tree: Path, data: Path) -> None:
        self._tree, self._data = tree, CoverageData(str(data))
        self._data.read()
        self._paths = self._data.measured_files()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant) -> list[str]:
        """Functions of tests that run the line, or the last line before it that is run at all, at
        most :data:`_MOST_TESTS` of them; the room's tests if none does in its own process."""
        lines = self._of(mutant.path)
        for line in range(mutant.line, max(0, mutant.line - _STATEMENT), -1):
            if line in lines:
                contexts = lines[line]
                found = {context.partition("|")[0].partition("[")[0] for context in contexts}
                tests = sorted(found - {""})
                few = random.Random(mutant.line).sample(tests, min(len(tests), _MOST_TESTS))
                return sorted(few) or tests_of(self._tree, mutant.room)
        return tests_of(self._tree, mutant.room)

    def _of(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            named = [each for each in self._paths if each.endswith(f"/{path}")]
            self._lines[path] = self._data.contexts_by_lineno(named[0]) if named else {}
        return self._lines[path]


def covered(tree: Path, data: Path) -> Path:
    """Run the tests that need no cluster and no framework, and keep which lines each one runs."""
    wanted = [f"tests/{name}" for name in ("unit", "processes") if (tree / "tests" / name).is_dir()]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--cov=dlperf_hpc", *wanted]
    env = {**os.environ, "PYTHONPATH": str(tree), "COVERAGE_FILE": str(data)}
    subprocess.run([*argv, "--cov-branch", "--cov-context=test"], cwd=tree, env=env, check=False)
    return data


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
        self._sound: dict[str, bool] = {}

    def killed(self, tests: Sequence[str], mutant: Mutant) -> bool:
        """Whether one of these tests fails with the fault, and passes without it."""
        path = self.place / mutant.path
        text = path.read_bytes()
        while True:
            _write(path, mutant.applied(text))
            try:
                failed = self._first_failure(tests)
            finally:
                _write(path, text)
            if failed is None or self._passes_without(failed, tests):
                return failed is not None

    def _passes_without(self, failed: str, tests: Sequence[str]) -> bool:
        """Of a fault that hangs or cannot be imported, no test is named: pytest must find them."""
        if not failed:
            if self._first_failure(["--collect-only", *tests]) is not None:
                raise SystemExit(f"without a fault, pytest finds no {', '.join(tests)}")
            return True
        if failed not in self._sound:
            self._sound[failed] = self._first_failure([failed]) is None
        return self._sound[failed]

    def _first_failure(self, tests: Sequence[str]) -> str | None:
        """The function of the first test that fails, None if all pass; without those that are known
        to fail without a fault."""
        left_out = [f"--deselect={test}" for test, sound in self._sound.items() if not sound]
        argv = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:xdist"]
        env = {**os.environ, "PYTHONPATH": str(self.place), "OMP_NUM_THREADS": "1"}
        with (
            tempfile.TemporaryFile("w+", errors="replace") as output,
            subprocess.Popen(
                [*argv, *left_out, *tests],
                cwd=self.place,
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return ""
            output.seek(0)
            failed = re.findall(
                r"^(?:FAILED|ERROR) ([^\s\[]*::[^\s\[]*)", output.read(), re.MULTILINE
            )
        return None if code in (0, _NO_TESTS) else failed[0] if failed else ""


def _write(path: Path, text: bytes) -> None:
    """Write a file whose time differs from that of earlier bytecode, also within a second."""
    before = path.stat().st_mtime
    path.write_bytes(text)
    os.utime(path, (before + 2, before + 2))


def run(
    tree: Path, mutants: Sequence[Mutant], covering: Covering, jobs: int
) -> list[tuple[Mutant, bool]]:
    """Print each mutant's end as it comes; each mutant, and whether it was killed."""
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def killed(mutant: Mutant) -> bool:
        copy = copies.get()
        try:
            end = copy.killed(covering.tests(mutant), mutant)
        finally:
            copies.put(copy)
        text = (tree / mutant.path).read_bytes()
        print(f"{'killed' if end else 'SURVIVED':8} {mutant.shown(text)}", flush=True)
        return end

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(Copy(tree, Path(name, str(number))))
        return list(zip(mutants, list(pool.map(killed, mutants))))


def main() -> None:
    """Print each mutant's end, then how many of each room were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--room", action="append", help="of these rooms alone")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--coverage", type=Path, help="data of that checkout's tests, made before")
    arguments = parser.parse_args()
    mutants = chosen(arguments.tree, arguments.number, arguments.seed)
    if arguments.room:
        mutants = [mutant for mutant in mutants if mutant.room in arguments.room]
    with tempfile.TemporaryDirectory() as name:
        data = arguments.coverage or covered(arguments.tree, Path(name, "coverage"))
        covering = Covering(arguments.tree, data)
    ends = run(arguments.tree, mutants, covering, arguments.jobs)
    rooms, killed = Counter(m.room for m, _ in ends), Counter(m.room for m, end in ends if end)
    for room, number in sorted(rooms.items()):
        print(f"{room:12} {killed[room]:4} of {number:4} killed")
    print(f"{'all':12} {killed.total():4} of {rooms.total():4} killed")


if __name__ == "__main__":
    main()
