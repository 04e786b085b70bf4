"""A log of ours that cannot be true: each figure that was changed by hand is named, and no number
counts where nothing shows which is right. Of an unchanged log nothing is ever said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from record_samples import a_run, a_sweep, ended_ok, paths, timed, without_end

from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.lines import read_timeline
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.record import reconcile

RUN = a_run()
Edit = Callable[[str], str]


def only(root: Path) -> RunResult:
    (result,) = full_results(root).results
    return result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sweep whose one run ended ok, with a checkpoint."""
    a_sweep(tmp_path, [RUN])
    ended_ok(tmp_path, RUN, checkpoint=True)
    return tmp_path


def edit(root: Path, change: Edit) -> None:
    log = paths(root, RUN).log
    before = log.read_text()
    after = change(before)
    assert after != before
    log.write_text(after)


def alone(root: Path) -> RunResult:
    """The run as its log alone has it, copied to somewhere else."""
    copy = root / "copies" / "some.log"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(paths(root, RUN).log.read_bytes())
    return reconcile(result_of_log(copy))


def sub(pattern: str, new: str) -> Edit:
    return lambda text: re.sub(pattern, new, text, count=1, flags=re.MULTILINE)


def without(pattern: str) -> Edit:
    return sub(rf"^dlperf \S+ {pattern}.*\n", "")


# --- nothing is said of what is as it was written ----------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 6, 199, 200, 201, 401, 1001])
@pytest.mark.parametrize("ranks", ["1n1g", "2n4g"])
def test_no_false_alarm(tmp_path: Path, iterations: int, ranks: str) -> None:
    """Whatever the length: of windows over 200 iterations the log has every k-th one."""
    run = a_run(ranks)
    a_sweep(tmp_path, [run])
    # the measure that the samples state asks for 6 iterations at least
    result = ended_ok(tmp_path, run, iterations=max(6, iterations), seconds=0.0512345)
    assert result.contradictions == ()
    assert only(tmp_path).warnings == ()


def test_lines_in_one_block_are_read_as_those_with_others_between(root: Path) -> None:
    data = paths(root, RUN).log.read_bytes()
    quick, where = read_timeline(data)
    assert quick is not None and data[where].count(b"\n") == 1 + len(quick.ms)
    chatter = data.replace(b" iteration n=8", b" iteration n=8", 1).replace(
        b"\ndlperf", b"\nW: some library\ndlperf"
    )
    slow, nowhere = read_timeline(chatter)
    assert slow == quick and not chatter[nowhere]
    windows, _ = read_timeline(data.replace(b"\n", b"\r\n"))
    assert windows is not None and list(windows.ms) == list(quick.ms)
    assert read_timeline(b"") == (None, slice(0, 0))
    assert read_timeline(data.replace(b"Z iteration", b"X iteration"))[0] is not None


# --- a log that was changed -------------------------------------------------------------

IN_DOUBT: dict[str, tuple[Edit, str]] = {
    "elapsed": (sub(r"( elapsed_s)=\S+", r"\1=0.0000001"), "samples_per_s"),
    "samples": (sub(r"( samples)=\d+", r"\1=384000"), "samples / elapsed_s"),
    "rate": (sub(r"( samples_per_s)=\S+", r"\1=3946657.0"), "says samples_per_s 3946657"),
    "rank": (sub(r"( global_batch=64 ranks)=2", r"\1=4"), "ranks 4, the world line 2"),
    "iteration": (sub(r"( n=8 .*ms)=\S+", r"\1=5000.0"), "iteration 8 says ms 5000, its"),
    "stamp": (
        sub(r"^dlperf \S+ iteration n=8", "dlperf 2023-11-14T22:19:59.000000Z iteration n=8"),
        "do not follow one another",
    ),
    "window": (
        lambda text: re.sub(
            r"samples_per_s=\S+", f"samples_per_s={384 / 10}",
            re.sub(r" elapsed_s=\S+", " elapsed_s=10.0", text),
        ),
        "from window_open to the last iteration it took",
    ),
    "two summaries": (
        lambda text: text + next(
            line.replace("samples=384", "samples=999") + "\n"
            for line in text.splitlines() if " summary " in line[:50]
        ),
        "two lines summary",
    ),
    "two ends": (
        sub(r"^(dlperf \S+ end) status=ok\n", r"\1 status=failed\n\1 status=ok\n"),
        "two lines end",
    ),
}  # fmt: skip

NOTED: dict[str, tuple[Edit, str]] = {
    "iteration lines gone": (without("iteration n=8"), "1 of 6 iteration lines are missing"),
    "no iteration line": (
        lambda text: re.sub(r"^dlperf \S+ iteration .*\n", "", text, flags=re.MULTILINE),
        "of which no line is there",
    ),
}


@pytest.mark.parametrize("name", IN_DOUBT)
def test_a_log_in_doubt_gives_no_number_alone(root: Path, name: str) -> None:
    change, told = IN_DOUBT[name]
    edit(root, change)
    result = alone(root)
    assert (result.status, result.samples_per_s) == (Status.PARTIAL, None)
    assert any(told in each.text for each in result.contradictions), result.contradictions
    assert "nothing shows which is right" in result.reason
    assert any(told in warning for warning in result.warnings)


@pytest.mark.parametrize("name", NOTED)
def test_what_does_not_touch_the_number_is_said(root: Path, name: str) -> None:
    change, told = NOTED[name]
    before = alone(root).samples_per_s
    edit(root, change)
    result = alone(root)
    assert (result.status, result.samples_per_s) == (Status.OK, before)
    assert any(told in each.text for each in result.contradictions), result.contradictions


def test_a_record_that_confirms_the_window(root: Path) -> None:
    """An iteration was changed by hand: log and record agree on the window, so that it counts."""
    before = only(root).samples_per_s
    edit(root, IN_DOUBT["iteration"][0])
    result = only(root)
    assert (result.status, result.samples_per_s) == (Status.OK, before)
    kinds = {each.between for each in result.contradictions}
    assert kinds == {"log", "record"}
    told = "; ".join(result.warnings)
    assert "iteration 8 says ms 5000, the record: 16.667 (300 times as much)" in told


@pytest.mark.parametrize("name", ["elapsed", "samples", "window"])
def test_a_record_that_contradicts_a_log_in_doubt(root: Path, name: str) -> None:
    edit(root, IN_DOUBT[name][0])
    result = only(root)
    assert (result.status, result.samples_per_s) == (Status.PARTIAL, None)
    assert any(each.between == "record" for each in result.contradictions)
    assert "one of them was changed" in "; ".join(result.warnings)


def test_a_record_and_a_log_that_are_each_sound_and_differ(root: Path) -> None:
    """Nothing shows which of them is right."""
    where = paths(root, RUN).record
    record = json.loads(where.read_text())
    record["window"]["elapsed_s"] *= 2
    record["detail"]["rank_elapsed_s"] = [2 * s for s in record["detail"]["rank_elapsed_s"]]
    where.write_text(json.dumps(record))
    result = only(root)
    assert (result.status, result.samples_per_s) == (Status.PARTIAL, None)
    assert "the log says elapsed_s" in result.reason and "(-50 %)" in result.reason


def test_a_record_that_was_changed_beside_a_sound_log(root: Path) -> None:
    before = only(root).samples_per_s
    where = paths(root, RUN).record
    record = json.loads(where.read_text())
    record["window"]["elapsed_s"] *= 2  # and its columns say otherwise
    where.write_text(json.dumps(record))
    result = only(root)
    assert (result.status, result.samples_per_s) == (Status.OK, before)
    assert [each.between for each in result.contradictions] == ["record"]


def test_an_end_that_was_changed_counts_for_nothing(root: Path) -> None:
    where = paths(root, RUN).record
    where.write_text(json.dumps({**json.loads(where.read_text()), "status": "failed"}))
    result = only(root)
    assert result.status is Status.PARTIAL and "status ok, the record failed" in result.reason


def test_of_a_log_that_was_cut_only_the_cut_is_said(root: Path) -> None:
    without_end(paths(root, RUN).log)
    assert only(root).contradictions == ()
    assert alone(root).status is Status.UNKNOWN


def test_a_summary_that_was_lost_contradicts_nothing(root: Path) -> None:
    edit(root, without("summary"))
    result = only(root)
    assert (result.status, result.contradictions, result.warnings) == (Status.PARTIAL, (), ())


def test_what_no_check_of_the_log_holds_differs_from_the_record(root: Path) -> None:
    edit(root, sub(r"( loss_last)=\S+", r"\1=0.5"))
    assert alone(root).contradictions == ()
    (found,) = only(root).contradictions
    assert (found.between, found.doubt) == ("record", False) and "loss_last" in found.text


def test_a_second_line_of_a_checkpoint_is_no_contradiction(root: Path) -> None:
    """As where a rank could not write its part, on a full disk."""
    edit(root, sub(r"^(dlperf \S+ checkpoint) ", r"\1 reason=full\n\1 "))
    assert alone(root).contradictions == ()


def test_long_windows(tmp_path: Path) -> None:
    """Of 1001 iterations each sixth has its line: one that is longer than all six was changed."""
    a_sweep(tmp_path, [RUN])
    ended_ok(tmp_path, RUN, iterations=1001)
    assert len(timed()[0].step_times) == 6
    edit(tmp_path, sub(r"( n=11 .*ms)=\S+", r"\1=500.0"))
    assert "iteration 11 says ms 500, its time stamp" in alone(tmp_path).reason
