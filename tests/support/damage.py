"""Damage done to logs, and what must hold of all that is read from them nevertheless."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from external_corpus import log, samples

from dlperf_hpc.logs.format import MAX_STEPS
from dlperf_hpc.logs.interpret.interpretation import Interpretation, interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.scanner import Scanner, scanner
from dlperf_hpc.logs.scan.sources import Source, blocks, find
from dlperf_hpc.logs.scanned import FACTS, LogStep, Reading, ScannedFile
from dlperf_hpc.model.result import RunResult, Status

REAL = os.environ.get("DLPERF_REAL_LOGS")
RULES = ("default", "clock", "printed", "total")
STATED: Mapping[str, Any] = {
    "nodes": 2,
    "gpus_per_node": 4,
    "batch_size": 32,
    "accumulation": 1,
    "seq_len": 128,
}
"""What a user might say of a log that does not say it."""

LARGEST = 1e15
_INFERRED = "an epoch's number of iterations is taken"


def scan(data: bytes, block: int | None = None, by: Scanner | None = None) -> ScannedFile:
    """What is in a file with this content, read in blocks of ``block`` bytes."""
    size = block or max(1, len(data))
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return (by or scanner()).scan("some.log", len(data), parts)


def line_by_line(data: bytes) -> ScannedFile:
    """What is in a file with this content, each line read by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlperf_hpc.logs.scan.scanner.FEWEST_IN_RUN", len(data) + 1)
        return scan(data)


def interpreted(
    scanned: ScannedFile, basis: str, stated: Mapping[str, Any] = STATED
) -> Interpretation:
    """The runs in it."""
    return interpret(scanned, (), (), stated, rule(basis))


# --- what must hold whatever is in a file


def check_figures(scanned: ScannedFile) -> None:
    """Every figure is one: finite, of the sign it must have, and from a line of the file."""
    for reading in scanned.readings:
        assert len(reading.steps) <= MAX_STEPS and len(reading.totals) <= MAX_STEPS
        for step in reading.steps:
            _check_step(step, scanned.end_line)
        for total in reading.totals:
            assert 0 < total.value <= LARGEST and 1 <= total.line <= scanned.end_line
    for fact in scanned.facts:
        assert isinstance(fact.value, FACTS[fact.name]), fact
        assert not isinstance(fact.value, int) or fact.value < 10**18, fact
    assert len(scanned.notes) <= 1000 and len(scanned.troubles) <= 1000


def _check_step(step: LogStep, end_line: int) -> None:
    assert 1 <= step.line <= end_line and 0 <= step.iteration < 10**18, step
    assert step.printed is None or 0 < step.printed <= LARGEST, step
    for figure in (step.stamp, step.loss, step.lr, step.memory_mb):
        assert figure is None or abs(figure) <= LARGEST, step


def check_results(found: Interpretation) -> None:
    """No result has a number that is none."""
    for result in found.results:
        assert isinstance(result.status, Status)
        window = result.external
        if window is None:
            assert result.samples_per_s is None and result.reason, result
            continue
        positive = (*window.rates.values(), window.factor, window.elapsed_s)
        for figure in (*positive, window.check):
            assert figure is None or (math.isfinite(figure) and figure > 0), window
        for figure in (window.loss_first, window.loss_last, window.memory_mb, window.drift):
            assert figure is None or math.isfinite(figure), window
        assert window.first is None or window.last is None or window.first <= window.last, window


# --- no figure that was not in the log before


def check_nothing_invented(damaged: ScannedFile, whole: ScannedFile, data: bytes) -> None:
    """Each line's figures, each total and each setting were in the undamaged log, ``data``, too."""
    # Where the log does not say how long an epoch is, iterations of later ones are an estimate.
    estimated = any(_INFERRED in note.text for note in (*whole.notes, *damaged.notes))
    for reading in damaged.readings:
        if reading.format in SPREAD:
            check_values(reading, data)
        elif reading.format == "tf2_resnet" and not any(step.printed for step in reading.steps):
            # Where all lines with speeds are gone, the stamps are read that its last line lists.
            check_values(reading, data)
            numbers = {float(number) for number in _NUMBER.findall(data)}
            assert {step.stamp for step in reading.steps} <= numbers
        else:
            # A line may look like another format's when part of it is gone.
            known = [each for each in whole.readings if each.format == reading.format]
            _check_lines(reading, known or whole.readings, estimated)
    facts = {(fact.name, fact.value) for fact in whole.facts}
    new = {(fact.name, fact.value) for fact in damaged.facts} - facts
    assert not new, new


SPREAD = (
    *(
        "bing_bert",
        "epoch_bars",
        "keras",
        "mindspore",
        "mlperf",
        "modded_nanogpt",
        "nanogpt",
        "ngc_tf1_bert",
    ),
    "ngc_tf2_bert",
)
"""Formats that tell on one line what another line's figure is, or that it is none: where lines are
missing between them, a figure may be taken for its neighbour's."""


def check_values(reading: Reading, data: bytes) -> None:
    """Each figure is one of the numbers in ``data``."""
    numbers = {float(number) for number in _NUMBER.findall(data)}
    for step in reading.steps:
        assert not {step.printed, step.loss, step.lr} - {None} - numbers, step
    assert not {total.value for total in reading.totals} - numbers


def _check_lines(reading: Reading, known: Sequence[Reading], estimated: bool) -> None:
    steps: dict[int, list[LogStep]] = {}
    for step in (step for each in known for step in each.steps):
        steps.setdefault(0 if estimated else step.iteration, []).append(step)
    for step in reading.steps:
        candidates = steps.get(0 if estimated else step.iteration, [])
        assert any(part_of(step, other, estimated) for other in candidates), step
    most = max((step.memory_mb or 0 for each in known for step in each.steps), default=0)
    assert all((step.memory_mb or 0) <= most for step in reading.steps)
    seen = {(total.name, total.value) for each in known for total in each.totals}
    assert not {(total.name, total.value) for total in reading.totals} - seen


def part_of(step: LogStep, other: LogStep, estimated: bool = False) -> bool:
    """Whether a step has nothing that the other has not."""
    return (estimated or step.iteration == other.iteration) and all(
        mine is None or mine == theirs
        for mine, theirs in (
            (step.stamp, other.stamp),
            (step.printed, other.printed),
            (step.loss, other.loss),
            (step.lr, other.lr),
        )
    )


def check_prefix(cut: Reading, whole: Reading) -> None:
    """The steps of a log that was cut are the first ones of the whole log's."""
    assert len(cut.steps) <= len(whole.steps)
    for step, other in zip(cut.steps, whole.steps):
        assert part_of(step, other) and step.line <= other.line, (step, other)


def check_cut_results(cut: Interpretation, whole: Interpretation, scanned: ScannedFile) -> None:
    """A run that a cut has shortened is partial, or it has no number and says why; it is ok only
    with a number that the whole one has by the same window.

    Of several totals the last counts: a cut log may have another, but none that was not printed.
    """
    numbers = {_window(result) for result in whole.results}
    totals = {total.value for reading in scanned.readings for total in reading.totals}
    for result in cut.results:
        window = result.external
        if result.status is Status.OK and window is not None:
            own = window.basis == "total" and window.speed / window.factor in totals
            assert own or _window(result) in numbers, result
        else:
            assert result.reason, result
            assert result.status in (Status.OK, Status.PARTIAL) or result.status.bad, result


def _window(result: RunResult) -> tuple[object, ...] | None:
    window = result.external
    if window is None:
        return None
    return (window.speed_unit, window.speed, window.basis, window.first, window.last)


# --- damage


def some_cuts(size: int, number: int, random: Random) -> Iterator[int]:
    """Where to cut: anywhere, and in the last bytes."""
    yield from (random.randrange(size) for _ in range(number))
    yield from range(max(0, size - 2), size)


def with_nuls(data: bytes, random: Random) -> bytes:
    """Blocks of NULs in place of what was there, and some between."""
    for _ in range(random.randint(1, 6)):
        at, length = random.randrange(len(data)), random.choice((1, 2, 30, 600))
        kept = at + (length if random.random() < 0.5 else 0)
        data = data[:at] + b"\0" * length + data[kept:]
    return data


def with_bytes(data: bytes, random: Random) -> bytes:
    """Bytes that are no UTF-8, or not whole: Latin-1, halves of characters, surrogates."""
    odd = (b"\xe9", b"\xff", b"\xc3", b"\xe2\x96", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xb2")
    for _ in range(random.randint(1, 40)):
        at = random.randrange(len(data))
        # Lines stay apart: of two that have become one nobody can tell what belongs together.
        replaced = random.randint(0, 1) if data[at] not in b"\r\n" else 0
        data = data[:at] + random.choice(odd) + data[at + replaced :]
    return data


def with_characters(data: bytes, random: Random) -> bytes:
    """Characters that look like digits or line ends to somebody."""
    odd = "\u0661\uff11\u00b2\u2028\u0085\u00a0\u200b\ufeff\u2212\x0b\x0c\x1c\x1b"
    for _ in range(random.randint(1, 40)):
        at = random.randrange(len(data))
        data = data[:at] + random.choice(odd).encode() + data[at:]
    return data


_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
ODD_NUMBERS = (
    *(b"nan", b"inf", b"-inf", b"NaN", b"Infinity", b"-1", b"0", b"-0.0", b"1e400", b"1e-400"),
    *(b"9" * 19, b"9" * 5000, b"1_000", b"0x1p3", b"1e999999999", b".", b"+", b"-", b"", b"1e15"),
    *(b"1" + b"0" * 308, b"0." + b"0" * 400 + b"1", b"18446744073709551616", b"1,000", b"1.2.3"),
)


def with_numbers(data: bytes, random: Random) -> bytes:
    """Some of the numbers replaced with text that is no number, or with numbers out of range."""
    share = random.choice((0.002, 0.02, 0.3))

    def replaced(match: re.Match[bytes]) -> bytes:
        return random.choice(ODD_NUMBERS) if random.random() < share else match[0]

    return _NUMBER.sub(replaced, data)


HARMLESS: Sequence[Callable[[bytes], bytes]] = (
    lambda data: data.replace(b"\n", b"\r\n"),
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.replace(b"\n", b"\n\n"),
    lambda data: data.replace(b"\n", b"  \n") if data.endswith(b"\n") else data,
)
"""What an editor or a copy does to a log."""


def tagged(texts: Sequence[str], random: Random, chunked: bool) -> bytes:
    """Ranks' logs woven into one as Open MPI does; ``chunked``: lines flushed in parts."""
    rest = [_lines(text) for text in texts]
    out = []
    while any(rest):
        rank = random.choice([rank for rank, lines in enumerate(rest) if lines])
        line = rest[rank][0]
        end = random.randint(1, len(line)) if chunked and random.random() < 0.3 else len(line)
        out.append(f"[1,{rank}]<stdout>:{line[:end]}")
        rest[rank][:1] = [line[end:]] if end < len(line) else []
    return "".join(out).encode()


def woven(texts: Sequence[str], random: Random) -> bytes:
    """Ranks' logs in one file without tags, lines whole."""
    rest = [_lines(text) for text in texts]
    out = []
    while any(rest):
        out.append(random.choice([lines for lines in rest if lines]).pop(0))
    return "".join(out).encode()


def _lines(text: str) -> list[str]:
    return [line + "\n" for line in text.split("\n")[:-1]]


def logs_on_disk() -> list[str]:
    """Paths of the samples beside the formats' tests, and of real logs if there are any."""
    real = find([Path(REAL)]) if REAL else ()
    kept = sorted(each.path for each in real if isinstance(each, Source))
    return [*map(str, samples()), *kept]


@functools.cache
def content(name: str) -> bytes:
    """A made log's bytes by its name, another one's by its path."""
    if os.path.isabs(name):
        return b"".join(blocks(Source(name, 0)))
    return log(name).text.encode()
