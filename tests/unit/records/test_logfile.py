"""A job log: what the writer wrote is what the reader gives, and of a damaged log no number."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import (
    COMMUNICATION,
    a_run,
    begun,
    ended,
    ended_ok,
    manifest,
    timed,
    without_end,
)

from dlperf_hpc.errors import LogError
from dlperf_hpc.model.result import RunResult, Status, Window
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.lines import write_line
from dlperf_hpc.records.logfile import read_end, read_log, result_of_log
from dlperf_hpc.records.store import finish, log_event
from dlperf_hpc.train import measurement

CHATTER = [
    "W1121 14:53:23.461 torch/distributed/run.py] *****",
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "0: dlperf 2026-11-21T14:53:20.696482Z end status=ok",
    "[n1:rank0] NCCL INFO cudaDriverVersion 12040",
    "| dlperf 2026-11-21T14:53:20.696482Z end status=ok",
    "\x1b[31merror\x1b[0m \x00\x07 \u2028 dlperf",
    "",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run that ended ok."""
    return Path(ended_ok(tmp_path, a_run()).log)


def edited(log: Path, old: str, new: str) -> Path:
    text = log.read_text()
    assert text.count(old) >= 1, old
    log.write_text(text.replace(old, new))
    return log


# --- round trip ----------------------------------------------------------------------------------


def test_every_figure_comes_back(tmp_path: Path) -> None:
    run = a_run()
    result = ended_ok(tmp_path, run)
    measured = replace(
        measurement.summarise(timed(), run.case, manifest([run]).measure),
        exposed_comm=COMMUNICATION.exposed,
    )
    assert result.window == measured
    assert asdict(measured) == asdict(Window.from_dict(asdict(measured)))
    absent = [key for key, value in asdict(measured).items() if value is None]
    assert absent == ["interrupted_s"]  # no rank stood still
    assert (result.status, result.reason, result.source) == (Status.OK, "", "log")
    assert result.run == run
    assert result.samples_per_s == measured.samples / max(w.elapsed_s for w in timed())


def test_facts_come_back(log: Path) -> None:
    result = result_of_log(log)
    assert result.facts["world"] == {"ranks": 2, "nodes": 1, "hosts": ["n1"]}
    assert result.facts["provenance"] == {"tool": "0.1.0", "cpu": 'an "odd" name', "cpus": 2}
    assert [rank["local_rank"] for rank in result.facts["ranks"]] == [0, 1]
    assert result.facts["measure"]["iterations"] == 6
    assert (result.attempt, result.warnings) == (1, ())
    assert result.started < result.ended


@pytest.mark.parametrize("place", ["provenance", "world", "case", "workload"])
def test_what_a_run_states_of_its_work_is_a_fact_wherever_it_stands(log: Path, place: str) -> None:
    stated = {"flops_per_sample": 1.5e12, "framework_name": "PyTorch", "framework_version": "2.13"}
    assert not stated.keys() & result_of_log(log).facts.keys()
    line = write_line("workload", stated, "2026-11-21T14:53:20.696482Z")
    if place == "workload":
        head, _, rest = log.read_text().partition("\n")
        log.write_text(f"{head}\n{line}\n{rest}")
    else:
        edited(log, f" {place} ", f" {place} {line.partition(' workload ')[2]} ")
    facts = result_of_log(log).facts
    assert {name: facts[name] for name in stated} == stated


def test_logs_share_what_they_have_in_common(tmp_path: Path) -> None:
    """Ten thousand runs of a sweep hold its few cases and machines once."""
    first, second = (ended_ok(tmp_path, a_run(repeat=repeat)) for repeat in (1, 2))
    assert first.run.case is second.run.case and first.run != second.run
    assert first.facts["world"] is second.facts["world"]
    assert first.facts["ranks"] == second.facts["ranks"]


@pytest.mark.parametrize(("rank", "count"), [("0", 2), ("[0]", 0)])
def test_times_of_ranks_need_ranks_with_numbers(log: Path, rank: str, count: int) -> None:
    edited(log, "without_ms=45.0", "without_ms=45.0 rank_ms=[44.0,45.0]")
    edited(log, " rank=0 ", f" rank={rank} ")
    assert len(result_of_log(log).rank_times) == count


@pytest.mark.parametrize(
    ("waits", "found"),
    [("[0.0,3.5]", [0.0, 3.5]), ("[0.0]", [None] * 2), ("[0.0,-1.0]", [None] * 2),
     ("x", [None] * 2)],
)  # fmt: skip
def test_how_long_ranks_waited_for_input(log: Path, waits: str, found: list[float | None]) -> None:
    edited(log, "without_ms=45.0", f"without_ms=45.0 rank_ms=[44.0,45.0] rank_wait_ms={waits}")
    assert [time.wait_ms for time in result_of_log(log).rank_times] == found


def test_iterations_are_numbered_from_the_warm_up(log: Path) -> None:
    read = read_log(log)
    assert [line["n"] for line in read.iterations] == [6, 7, 8, 9, 10, 11]
    assert sum(line["ms"] for line in read.iterations) == pytest.approx(
        1e3 * max(sum(w.step_times) for w in timed()), abs=0.01
    )


def test_a_long_window_keeps_its_log_short(tmp_path: Path) -> None:
    log = Path(ended_ok(tmp_path, a_run(), iterations=1001).log)
    lines = read_log(log).iterations
    assert len(lines) <= 201 and lines[-1]["n"] == 5 + 1001
    assert result_of_log(log).window is not None


def test_a_failure_keeps_its_reason_and_traceback(tmp_path: Path) -> None:
    reason = 'rank 1 on n1: ValueError: "x"\nsecond line \x1b[0m'
    attempt = ended(tmp_path, a_run(), Status.FAILED, reason)
    result = result_of_log(attempt.paths.log)
    assert (result.status, result.reason, result.window) == (Status.FAILED, reason, None)
    assert "| ValueError: x\n" in attempt.paths.log.read_text()
    end = read_end(attempt.paths.log)
    assert end is not None and end.values == {"status": "failed", "reason": reason}


def test_a_traceback_cannot_speak_for_us(tmp_path: Path) -> None:
    attempt = begun(tmp_path, a_run())
    trace = f"{write_line('end', {'status': 'ok'})}\r{write_line('end', {'status': 'ok'})}\udcff"
    assert finish(attempt, Status.FAILED, "x", trace)
    assert result_of_log(attempt.paths.log).status is Status.FAILED


def test_a_reason_without_end_is_shortened(tmp_path: Path) -> None:
    attempt = ended(tmp_path, a_run(), Status.FAILED, "x" * 100_000)
    assert result_of_log(attempt.paths.log).reason == "x" * 1000


# --- damage --------------------------------------------------------------------------------------


def test_a_log_cut_anywhere_gives_no_number(tmp_path: Path, log: Path) -> None:
    data, cut = log.read_bytes(), tmp_path / "cut.log"
    whole = result_of_log(log).window
    assert whole is not None
    summary_ends = data.index(b"\n", data.index(b" summary ")) + 1
    kinds = set()
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        assert read_end(cut) is None
        try:
            result = result_of_log(cut)
        except LogError as error:
            kinds.add("unreadable")
            assert str(cut) in str(error)
            continue
        kinds.add(result.status)
        assert result.status is Status.UNKNOWN and "without an end line" in result.reason
        assert result.samples_per_s is None
        assert result.window == (whole if length >= summary_ends else None)
    assert kinds == {"unreadable", Status.UNKNOWN}


def test_a_log_cut_at_the_front_gives_nothing(tmp_path: Path, log: Path) -> None:
    data, cut = log.read_bytes(), tmp_path / "cut.log"
    for start in range(1, len(data), 7):
        cut.write_bytes(data[start:])
        with pytest.raises(LogError):
            result_of_log(cut)


@settings(max_examples=150)
@given(at=st.integers(0, 10**6), junk=st.binary(max_size=40), gone=st.integers(0, 40))
def test_a_hole_in_a_log_gives_no_other_number(
    tmp_path: Path, log: Path, at: int, junk: bytes, gone: int
) -> None:
    """Bytes replaced anywhere: the window as it was, or none (or a digit that changed)."""
    data = log.read_bytes()
    at %= len(data)
    hurt = tmp_path / "hurt.log"
    hurt.write_bytes(data[:at] + junk + data[at + gone :])
    try:
        result = result_of_log(hurt)
    except LogError:
        return
    assert result.run.id == a_run().id
    if result.samples_per_s is not None:
        assert result.window is not None
        assert all(
            getattr(result.window, field.name) is not None
            for field in fields(Window)
            if "None" not in str(field.type)
        )


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\x00" * 1000, bytes(range(256)) * 20, b"dlperf \n" * 5, b"[1,2,3]\n"]
    + [b"step 1 loss 2\n", b"\xff\xfe" + "dlperf".encode("utf-16-le"), b"dlperf"],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.log"
    path.write_bytes(content)
    assert read_end(path) is None
    with pytest.raises(LogError, match="not a log of this tool"):
        result_of_log(path)


def test_no_file_and_no_file_to_be_read(tmp_path: Path) -> None:
    assert read_end(tmp_path / "no.log") is None
    with pytest.raises(LogError, match=r"no\.log: cannot be read: No such file"):
        result_of_log(tmp_path / "no.log")
    for read in (read_end, result_of_log):
        with pytest.raises(LogError, match="cannot be read: Is a directory"):
            read(tmp_path)


def test_windows_line_ends(log: Path) -> None:
    before = result_of_log(log)
    log.write_bytes(log.read_bytes().replace(b"\n", b"\r\n"))
    assert result_of_log(log) == before
    assert read_end(log) is not None


def test_foreign_output_between_our_lines(log: Path) -> None:
    before = result_of_log(log)
    lines = log.read_text().splitlines()
    mixed = [part for i, line in enumerate(lines) for part in (CHATTER[i % len(CHATTER)], line)]
    log.write_text("\n".join([*mixed, *CHATTER, ""]))
    assert result_of_log(log) == before
    assert read_end(log) is not None


def test_a_line_that_others_wrote_into_is_told(log: Path) -> None:
    edited(log, " summary warmup=5", " summary warm[NCCL INFO]up=5")
    result = result_of_log(log)
    assert (result.status, result.window) == (Status.PARTIAL, None)
    assert len(result.warnings) == 1 and "cannot be read: 'dlperf 20" in result.warnings[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("samples=", "sample="),
        ("samples=384", "samples=true"),
        ("samples=384", "samples=384.5"),
        ("samples=384", 'samples="384"'),
        ("samples=384", "samples=384000000000000000000"),
        ("warmup=5 iterations=6 opt", "warmup=5 iterations=null opt"),
        ("elapsed_s=", "elapsed_s=0"),
        ("elapsed_s=", "elapsed_s=-"),
        ("loss_last=", "loss_last=NaN loss_then="),
        ("loss_last=", "loss_last=1e999 loss_then="),
        ("memory_mb=", "memory_mb=[1] memory="),
        ("steady=", "steady=1 was_steady="),
    ],
)
def test_a_summary_that_is_not_whole_gives_no_window(log: Path, old: str, new: str) -> None:
    result = result_of_log(edited(log, old, new))
    assert (result.status, result.window) == (Status.PARTIAL, None)
    assert "summary" in result.reason and "summary line is not complete" in result.warnings[0]


def test_figures_that_older_versions_did_not_have(log: Path) -> None:
    text = "".join(
        " ".join(
            w
            for w in line.split(" ")
            if not w.startswith(("drift=", "memory_mb=", "steady=", "exposed_comm="))
        )
        for line in log.read_text().splitlines(keepends=True)
    )
    log.write_text(text.replace(" summary ", " summary new_figure=1 "))
    result = result_of_log(log)
    assert result.status is Status.OK and result.window is not None
    window = result.window
    assert (window.drift, window.memory_mb, window.steady, window.exposed_comm) == (None,) * 4


def test_an_end_of_a_newer_version_is_unknown(log: Path) -> None:
    result = result_of_log(edited(log, "end status=ok", "end status=splendid"))
    assert result.status is Status.UNKNOWN and "'splendid'" in result.reason
    assert result.samples_per_s is None


def test_a_log_of_a_newer_format(log: Path) -> None:
    with pytest.raises(LogError, match="log format 2, this version reads 1: use a newer"):
        result_of_log(edited(log, "begin format=1", "begin format=2"))


def test_events_and_keys_of_a_newer_version_are_passed_over(log: Path) -> None:
    before = result_of_log(log)
    edited(log, " case framework=", " case flavour=sweet framework=")
    text = log.read_text().splitlines(keepends=True)
    text.insert(3, write_line("weather", {"sunny": True}) + "\n")
    log.write_text("".join(text))
    assert result_of_log(log) == before


def test_two_logs_in_one_file(tmp_path: Path, log: Path) -> None:
    other = ended(tmp_path, a_run(repeat=2), Status.FAILED, "x").paths.log
    both = tmp_path / "both.log"
    for first, second in ((log, other), (other, log), (log, log)):
        both.write_bytes(first.read_bytes() + second.read_bytes())
        with pytest.raises(LogError, match="begins again: two logs in one file"):
            result_of_log(both)
    both.write_bytes(log.read_bytes()[-800:].split(b"\n", 1)[1] + other.read_bytes())
    with pytest.raises(LogError, match="before any 'begin'"):
        result_of_log(both)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (" repeat=1", " repeat=2", "begins as"),
        ("batch_size=32", "batch_size=64", "begins as"),
        ("batch_size=32", "batch_size=x", "batch_size is 'x'"),
        ("seq_len=128", "seq_len=null", "seq_len is None"),
        (" repeat=1", " repeat=one", "repeat is 'one'"),
        (" attempt=1", " attempt=one", "attempt is 'one'"),
        ('topology="1n2g"', "topology=all", "before its case was written"),
        (" case framework=torch", " case", "before its case was written"),
        (" case ", " kase ", "before its case was written"),
        (" optimizer.name=adamw", " optimizer=adamw", "before its case was written"),
        (" options.note=", " options=5 note=", "before its case was written"),
    ],
)
def test_a_log_that_does_not_say_whose_it_is(log: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(LogError, match=why):
        result_of_log(edited(log, old, new))


# --- the end, quickly ----------------------------------------------------------------------------


def test_the_phase_of_a_cut_log_is_told(tmp_path: Path) -> None:
    attempt = begun(tmp_path, a_run())
    assert "in phase shutdown" in result_of_log(attempt.paths.log).reason
    log_event(attempt, "phase", {"name": "build"})
    assert "in phase build" in result_of_log(attempt.paths.log).reason


def test_the_end_is_found_before_much_that_came_after_it(tmp_path: Path) -> None:
    attempt = ended(tmp_path, a_run(), Status.FAILED, "rank 1 died")
    for i in range(300):
        log_event(attempt, "iteration", {"n": i, "loss": 1.5, "ms": 10.25})
    assert attempt.paths.log.stat().st_size > 2 * 8192
    end = read_end(attempt.paths.log)
    assert end is not None and end.values["reason"] == "rank 1 died"


def test_quick_and_whole_agree(tmp_path: Path) -> None:
    results: list[RunResult] = [ended_ok(tmp_path, a_run())]
    for repeat, status in enumerate((s for s in Status if s.bad), 2):
        ended(tmp_path, a_run(repeat=repeat), status, f"is {status.value}")
        results.append(result_of_log(RunPaths(tmp_path, a_run(repeat=repeat).id).log))
    for result in results:
        end = read_end(Path(result.log))
        assert end is not None and end.values["status"] == result.status.value
        without_end(Path(result.log))
        assert read_end(Path(result.log)) is None
        assert result_of_log(Path(result.log)).status is Status.UNKNOWN
