"""Every format's made log, from bytes to samples/s: nothing between the two may be off."""

from __future__ import annotations

from pathlib import Path

import pytest
from external_corpus import LAST, Log, corpus, log, names, samples

from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scanned import ScannedFile
from dlperf_hpc.model.result import Status

CORPUS = {each.name: each for each in corpus()}


def read(made: Log) -> ScannedFile:
    data = made.text.encode()
    return scanner().scan(made.name, len(data), [data])


def test_there_is_a_log_of_every_format() -> None:
    made = {each.format for each in CORPUS.values()}
    assert made | {path.stem for path in samples()} == {each.name for each in formats()}


@pytest.mark.parametrize("path", samples(), ids=lambda path: path.stem)
def test_a_sample_is_recognised_as_the_format_of_its_name(path: Path) -> None:
    data = path.read_bytes()
    (reading,) = scanner().scan(path.name, len(data), [data]).readings
    assert reading.format == path.stem and (reading.steps or reading.totals)


@pytest.mark.parametrize("name", names())
def test_the_log_is_recognised_before_anything_else(name: str) -> None:
    scanned = read(CORPUS[name])
    assert scanned.readings[0].format == CORPUS[name].format
    assert not scanned.cut and not scanned.troubles
    steps = scanned.readings[0].steps
    assert not steps or LAST - 10 <= steps[-1].iteration <= LAST


@pytest.mark.parametrize(
    ("name", "basis"), [(name, basis) for name, made in CORPUS.items() for basis in made.true]
)
def test_the_true_speed_comes_out(name: str, basis: str) -> None:
    made = CORPUS[name]
    true, within = made.true[basis]
    interpreted = interpret(read(made), (), (), made.stated, rule(basis))
    assert not interpreted.problems
    (result,) = interpreted.results
    assert (result.status, result.reason) == (Status.OK, "")
    assert result.samples_per_s == pytest.approx(true, rel=within)


@pytest.mark.parametrize("name", names())
def test_the_default_takes_the_best_there_is(name: str) -> None:
    made = CORPUS[name]
    basis = next(each for each in ("clock", "printed", "total") if each in made.true)
    (result,) = interpret(read(made), (), (), made.stated, rule("default")).results
    assert result.external is not None and result.external.basis == basis
    assert result.samples_per_s == pytest.approx(made.true[basis][0], rel=made.true[basis][1])


def test_shortened_logs_are_still_recognised() -> None:
    for name in names():
        short = log(name, last=12)
        assert [each.format for each in read(short).readings][:1] == [short.format]
