"""What version 0.1.0 of November 2026 wrote is read as that version read it.

``data/sweeps_2026_11`` holds sweeps as they lay on disk, and what the verbs then made of them. Of
every file and table made today, all that stood there then must stand there with the same value.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_slurm import Onebox
from places import BUSY, SUPPORT
from sweeping import local_environment, wait_until

DATA = SUPPORT / "data" / "sweeps_2026_11"
EXPECTED = DATA / "expected"
COMMANDS: dict[str, dict[str, Any]] = json.loads((DATA / "commands.json").read_text())
CHECKPOINT = ("save_s", "load_s", "mb_per_rank", "save_mb_s", "load_mb_s")
TOKENS = (
    *("tokens_per_s", *(f"tokens_per_s_{end}" for end in ("low", "high", "min", "max"))),
    *(f"base_tokens_per_s{end}" for end in ("", "_low", "_high")),
    *("tokens_per_s_coverage", "tokens_per_s_per_device", "check_tokens_per_s", "speedup_of"),
)
FIGURES = (
    *("figure", "figure_unit", *(f"figure_{end}" for end in ("low", "high", "min", "max"))),
    *(f"base_figure{end}" for end in ("", "_low", "_high")),
    "figure_coverage",
)
STEPS = ("iteration_ms", "step_ms_p50")
GPU = ("alloc_retries", "reserved_mb", "joules_by", "devices", "covered", "gap_s", "energy_doubt")
PRICED = ("samples_per_currency", "tokens_per_currency", "currency")
EXECUTION = ("graphs", "graph_breaks", "recompiles")
PLACES = ("runs.csv: ", "speedup.csv: ", "report.json: runs[].", "report.json: cases[].")
ADDED = frozenset(
    [
        *(f"{place}checkpoint_{name}" for place in PLACES for name in CHECKPOINT),
        *(f"{place}{name}" for place in PLACES for name in (*TOKENS, *FIGURES)),
        *(f"{place}gpu_{name}" for place in PLACES for name in GPU),
        *(f"{place}{name}" for place in PLACES for name in EXECUTION),
        *(f"{place}attention" for place in PLACES),
        *(f"{place}allreduce_{name}" for place in PLACES for name in ("ms", "bus_gb_s")),
        *(
            f"report.json: {name}"
            for name in ("method.tokens_per_s", "method.figure", "nodes", "cost")
        ),
        *(
            f"report.json: {name}"
            for name in ("flag_counts", "predictions", "step_parts", "sweeps", "curves")
        ),
        *(f"{place}{name}" for place in PLACES for name in PRICED),
        "report.json: switches[].unit",
        "report.json: switches[].pairs",
        *(f"compare.json: cases[].{name}" for name in ("differences", "unit", "pairs")),
        *(f"compare.json: cases[].{side}.{name}" for side in "ab" for name in (*TOKENS, *FIGURES)),
        "compare.json: verdicts.other unit",
        *(f"status.json: {key}" for key in ("not_submitted", "report_job")),
        *(f"status.json: runs[].{key}" for key in ("submitted", "to_do", "case", "warnings")),
        *(
            f"status.json: runs[].{key}"
            for key in ("job", "nodes", "elapsed_s", "left_s", "starts")
        ),
        *(f"{place}{name}" for place in PLACES for name in ("sweep", *STEPS)),
        *(f"{place}nccl_{name}" for place in PLACES for name in ("transport", "channels")),
    ]
)
"""Columns and keys that are new since: ``runs.csv: column``, ``report.json: series[].cases[].x``
(``[]`` for any place in a list)."""

REWORDED = {
    " foreign": " in no known format",
    "is believed, for what ran wrote it": "counts, for the program that ran wrote it",
    "no line tells of an iteration": "no line with the number of an iteration was read",
    "a verdict could be wrong": "an outcome could be wrong",
    " 1 remarks on": " 1 remark on",
    "samples/s is what the program": "the speed is what the program",
    "samples/s is the program's total": "the speed is the program's total",
}
"""Words that are other words since, in texts for people (flags, notes, the summary of sources)."""

EXITS = {"report-external-printed": 1}
"""Exit codes that are others since: a log of ours without its case is a trouble now."""

WARNED = ("divides the samples that were planned", "in a series of its own")
"""Parts of warnings that are new since: a row that has one besides those it had is as it was."""

GONE = ("printed-only", "rest on printed figures alone")
"""A flag and its note that were set although a clock stood beside the printed figures."""

MENDED = ("report-several",)
"""Commands that tell something else today because what they told was wrong: of two sweeps of one
case the second was left out as a duplicate (see the test of that)."""

SHORT, USED = "the log ends at iteration", re.compile(r": clock\[\d+:\d+\] is used")
"""The reason of a log that ends within the window, and what it says since such a log has a figure:
where there was no value, there may be one."""

VARYING = {"status-archived": {"root"}, "report-logs-alone": {"foreign", "source"}}
"""Keys that are not the same: an archive is unpacked to a folder of its own, and the records beside
logs are no files in no known format any more."""

# What the batch scripts name of the machine on which they were made.
LOGS, PYTHON = "/srv/bench/logs", "/opt/dlperf_hpc/.venv/bin/python"
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sweeps and logs beside one another, as when the commands were typed."""
    return unpacked(tmp_path_factory.mktemp("earlier"))


def unpacked(folder: Path, *names: str) -> Path:
    """The named archives' content in a folder; of all if none is named. Of the made logs of other
    programs one is the beginning of another, a copy by today's reading: it gets another day."""
    for path in [DATA / name for name in names] or sorted(DATA.glob("*.zip")):
        if path.name == "archived.zip":  # the verb's own: it is read as it is
            (folder / path.name).write_bytes(path.read_bytes())
        else:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
    for path in folder.glob("external/odd/short/*/*.log"):
        path.write_text(path.read_text().replace("2020-10-27", "2020-10-28"))
    return folder


def typed(argv: list[str], where: Path) -> Done:
    """Run ``dlperf_hpc`` as a user does, in a directory, where no Slurm answers."""
    env = {**local_environment(), "XDG_CACHE_HOME": str(where / "cache")}
    command = [sys.executable, "-m", "dlperf_hpc", *argv]
    return subprocess.run(
        command, cwd=where, env=env, text=True, capture_output=True, timeout=60 * BUSY, check=False
    )


def told(place: Path, name: str) -> dict[str, str]:
    """What a command of the list leaves today: the text of each file that is expected of it."""
    command = COMMANDS[name]
    done = typed(command["argv"], place)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == EXITS.get(name, command["exit"]), done.stdout + done.stderr
    made = {Path(path).name: (place / path).read_text() for path in command.get("files", [])}
    if "stdout" in command:
        made[command["stdout"]] = done.stdout
    return made


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in MENDED])
def test_a_verb_tells_what_it_told(place: Path, name: str) -> None:
    made = told(place, name)
    expected = {path.name: path.read_text() for path in (EXPECTED / name).iterdir()}
    assert made.keys() == expected.keys()
    differing: list[str] = []
    for file, text in expected.items():
        kind = Path(file).suffix
        if kind == ".json":
            ours = json.loads(made[file])
            found = in_json(json.loads(text), ours, "", VARYING.get(name, set()))
        elif kind == ".csv":
            found = in_table(rows_of(text), rows_of(made[file]))
        elif kind == ".txt":
            found = in_lines(text.splitlines(), made[file].splitlines())
        else:  # prose may be worded anew; the headings tell whether something is gone
            assert kind == ".md"
            found = in_lines(headings(text), headings(made[file]))
        differing += [f"{file}: {each}" for each in found]
    unlisted = sorted({each for each in differing if each.removesuffix(" is new") not in ADDED})
    assert not unlisted, "\n".join(unlisted[:40])


def test_two_sweeps_of_one_case_are_two_measurements(place: Path) -> None:
    """All runs of both are there as they were; what each says of its cases it says alone too."""
    made = told(place, "report-several")
    expected = EXPECTED / "report-several" / "runs.csv"
    differing = in_table(rows_of(expected.read_text()), rows_of(made["runs.csv"]))
    assert {f"runs.csv: {each.removesuffix(' is new')}" for each in differing} <= ADDED
    cases = rows_of(made["speedup.csv"])
    both = {row["sweep"] for row in cases if row["series"].startswith("ddp/bert-tiny")}
    assert both == {"quick", "requeued"}
    assert not any("duplicate-run" in row["flags"] for row in cases)
    for sweep, name in (("quick", "report-local"), ("requeued", "report-requeued")):
        alone = rows_of((EXPECTED / name / "speedup.csv").read_text())
        # A case that one sweep alone measured needs no name beside it.
        ours = [
            row for row in cases if row["sweep"] == sweep or (sweep == "quick" and not row["sweep"])
        ]
        assert [row["samples_per_s"] for row in ours] == [row["samples_per_s"] for row in alone]
        assert [row["speedup"] for row in ours] == [row["speedup"] for row in alone]
        assert f"of sweep {sweep}" in made["report.md"]


def in_json(expected: Any, found: Any, where: str, ignored: set[str]) -> Iterator[str]:
    """Where a JSON value is not what it was."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in (expected.keys() | found.keys()) - without_value(expected):
            path = f"{where}.{key}" if where else key
            if path in ignored:
                continue
            if key not in found:
                yield f"{path} is gone"
            elif key not in expected:
                yield f"{path} is new"
            else:
                yield from in_json(expected[key], found[key], path, ignored)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for old, new in zip(expected, found):
            yield from in_json(old, new, f"{where}[]", ignored)
    elif not same(expected, found):
        yield f"{where} was {expected!r}, is {found!r}"


def without_value(run: dict[str, Any]) -> set[str]:
    """What a run whose log is too short for the window did not tell, and may tell now."""
    short = SHORT in str(run.get("reason"))
    return {key for key, value in run.items() if short and value in (None, "")}


def same(expected: Any, found: Any) -> bool:
    """Equal, numbers to nine digits: another numpy may round the last ones otherwise."""
    if type(expected) is float or type(found) is float:
        numbers = isinstance(expected, (int, float)) and isinstance(found, (int, float))
        return numbers and bool(found == pytest.approx(expected, rel=1e-9, nan_ok=True))
    if isinstance(expected, str):
        for old, new in REWORDED.items():
            expected = expected if expected == found else expected.replace(old, new)
        found = USED.sub("", found) if isinstance(found, str) and SHORT in found else found
    if expected != found:
        expected, found = told_alike(expected, GONE), told_alike(found, (*GONE, *WARNED))
    return type(expected) is type(found) and bool(expected == found)


def told_alike(told: Any, left_out: tuple[str, ...]) -> Any:
    """Flags, notes or warnings, as text or as a list, without those that hold one of these."""
    if isinstance(told, list):
        return [each for each in told if not any(part in str(each) for part in left_out)]
    if not isinstance(told, str) or not any(part in told for part in left_out):
        return told
    by = " | " if " | " in told or told.count(" ") > 6 else " "
    kept = by.join(each for each in told.split(by) if not any(part in each for part in left_out))
    return kept or None


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def in_table(expected: list[dict[str, str]], found: list[dict[str, str]]) -> Iterator[str]:
    """Where a CSV's cells are not what they were, row by row."""
    if len(expected) != len(found):
        yield f"there were {len(expected)} rows, there are {len(found)}"
        return
    if expected:
        yield from (f"{name} is gone" for name in expected[0] if name not in found[0])
        yield from (f"{name} is new" for name in found[0] if name not in expected[0])
    for row, (old, new) in enumerate(zip(expected, found), 1):
        for name in (old.keys() & new.keys()) - without_value(old):
            if not same_cell(old[name], new[name]):
                yield f"{name} of row {row} was {old[name]!r}, is {new[name]!r}"


def same_cell(expected: str, found: str) -> bool:
    """As :func:`same`, of text: an integer that is written as a float is another cell."""
    number = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
    if number.fullmatch(expected) and number.fullmatch(found):
        return same(float(expected), float(found))
    return same(expected or None, found or None)


def in_lines(expected: list[str], found: list[str]) -> Iterator[str]:
    yield from (f"{line!r} is gone" for line in expected if line not in found)


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


# --- a sweep of then goes on today ----------------------------------------------------------------


def test_the_same_sweep_again_measures_nothing(tmp_path: Path) -> None:
    """Given again, the command finds its twelve earlier runs; none is measured twice."""
    sweep = unpacked(tmp_path, "local.zip") / "quick"
    before = contents(sweep)
    again = ["sweep", "quick/sweep.toml", "--name", "quick", "--logs", ".", "--cluster", "local"]
    done = typed([*again, "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    after = contents(sweep)
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after.keys() - before.keys() if path.suffix in (".log", ".out")]
    more = typed([*again, "--json", "--dry-run", "--set", "repeats=4"], tmp_path)
    assert more.returncode == 0, more.stderr
    directory = json.loads(more.stdout)["directory"]
    assert directory == {"there": 12, "added": 4, "differences": []}


def test_what_failed_then_is_rerun_now(tmp_path: Path) -> None:
    """As the arrays after the two reruns of then; what became ok in one of them is not taken."""
    unpacked(tmp_path, "slurm.zip")
    which = ["--status", "failed,timeout,out_of_memory,cancelled", "--dry-run", "--json"]
    done = typed(["rerun", "mixed", *which], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    arrays = {each["array"]: each["runs"] for each in json.loads(done.stdout)["arrays"]}
    assert arrays == {
        f"{topology}.mixed.r3": [
            f"ddp/bert-tiny/bz2/{topology}/bert-tiny_b2_fp32-seq16_{repeat}" for repeat in (2, 3)
        ]
        for topology in ("2n2g", "1n2g")
    }


def contents(root: Path) -> dict[Path, bytes]:
    """All files of a sweep but for its report and its lock."""
    paths = (path for path in root.rglob("*") if path.is_file() and path.parent.name != "report")
    return {path: path.read_bytes() for path in paths if path.name != ".submitting"}


def script_of(root: Path, array: str) -> str:
    """The batch script of an array as it was submitted, of this machine now."""
    scripts = (path.read_text() for path in (root / "jobs").glob("*_submission.sh"))
    (text,) = (text for text in scripts if f"--job-name={array}\n" in text)
    assert LOGS in text and PYTHON in text
    text = text.replace(LOGS, shlex.quote(str(root.parent)))
    return text.replace(PYTHON, shlex.quote(sys.executable))


def ends(root: Path) -> dict[str, tuple[str, str]]:
    """Status and reason of every run, as ``status`` says."""
    done = typed(["status", str(root), "--offline", "--json"], root.parent)
    assert done.stdout, done.stderr
    return {row["run"]: (row["status"], row["reason"]) for row in json.loads(done.stdout)["runs"]}


def records(root: Path) -> list[dict[str, Any]]:
    """The records beside the logs, in the order of the runs."""
    paths = sorted(path for path in root.glob("ddp/*/*/*/*.json"))
    return [json.loads(path.read_text()) for path in paths]


# srun in whose step no rank comes so far as to write anything.
SRUN = """\
#!/bin/sh
echo "srun: error: n1: task 0: Killed"
exit 137
"""


@pytest.mark.parametrize(
    ("name", "array", "job", "turns"),
    [
        ("queued", "queued-1n1g", "10", [""]),
        ("queued", "queued-1n2g", "11", [""]),
        ("queued-turns", "queued-turns-1n1g", "12", [".0", ".1"]),
    ],
)
def test_a_queued_script_leaves_a_record_where_its_ranks_did_not(
    tmp_path: Path, name: str, array: str, job: str, turns: list[str]
) -> None:
    """The script of then as Slurm would run it; only its ``srun`` is another."""
    root = unpacked(tmp_path / "logs", "queued.zip") / name
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    # The job is the one that the directory names: a task of another would be an earlier one.
    slurm = {"SLURM_JOB_ID": job, "SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": "0"}
    path = f"{srun.parent}{os.pathsep}{os.environ['PATH']}"
    script = script_of(root, array)
    output = root / "jobs" / f"{job}_0.out"
    with open(output, "w") as out:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**local_environment(), **slurm, "PATH": path},
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=60 * BUSY,
            check=False,
        )
    assert done.returncode == 137, output.read_text()
    made = records(root)
    assert [record["launch"] for record in made] == [f"{job}_0.0{turn}" for turn in turns]
    killed = ("failed", "rank 0 on n1 died: Killed")
    assert [(record["status"], record["reason"]) for record in made] == [killed] * len(turns)
    assert list(ends(root).values()).count(killed) == len(turns)


def test_a_queued_job_measures_and_ends_with_records(tmp_path: Path, onebox: Onebox) -> None:
    """On a real Slurm: the job waited in the queue while the package was replaced."""
    root = unpacked(tmp_path / "logs", "queued.zip") / "queued-turns"
    script = tmp_path / "script.sh"
    script.write_text(script_of(root, "queued-turns-1n1g").replace("#SBATCH --hold\n", ""))
    submitted = onebox.run(["sbatch", "--parsable", str(script)], cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_until(lambda: len(records(root)) == 2, 120, "the records of a queued job's two runs")
    told = [(record["status"], record["launch"]) for record in records(root)]
    assert told == [("ok", f"{job}_0.0.0"), ("ok", f"{job}_0.0.1")]
    wait_until(lambda: job not in onebox.run(["squeue", "-h", "-o", "%A"]).stdout, 60, "its end")
    assert list(ends(root).values()) == [("ok", "")] * 2
    report = typed(["report", "logs/queued-turns", "--out", "out"], tmp_path)
    assert report.returncode == 0, report.stdout + report.stderr
    rows = rows_of((tmp_path / "out" / "runs.csv").read_text())
    assert all(float(row["samples_per_s"]) > 0 for row in rows) and len(rows) == 2


def waiting_script(root: Path, array: str) -> str:
    """The script of a job that waited, free to start. The queue of this machine has no job that its
    report could wait for."""
    text = script_of(root, array).replace("#SBATCH --hold\n", "")
    return re.sub(r"#SBATCH --dependency=.*\n", "", text)


@pytest.mark.parametrize(
    ("name", "array", "runs"), [("waits", "1n2g.waits", 2), ("program", "1n1g.program-steps", 1)]
)
def test_what_waited_before_the_rebuilding_measures_and_reports(
    tmp_path: Path, onebox: Onebox, name: str, array: str, runs: int
) -> None:
    """A back end's sweep and a user's program, each with its report's job, as f313cfb submitted
    them; then the package was replaced."""
    root = unpacked(tmp_path / "logs", "waiting.zip") / name
    manifest = root / "manifest.json"
    program = str(SUPPORT / "programs" / "steps.py")
    manifest.write_text(manifest.read_text().replace("/srv/bench/steps.py", program))
    for each in (array, f"{name}.report"):
        script = tmp_path / f"{each}.sh"
        script.write_text(waiting_script(root, each))
        done = onebox.run(["sbatch", "--wait", str(script)], cwd=tmp_path, timeout=200 * BUSY)
        output = [path.read_text() for path in (root / "jobs").glob("*.out")]
        assert done.returncode == 0, (done.stderr, output)
    assert list(ends(root).values()) == [("ok", "")] * runs
    rows = rows_of((root / "report" / "runs.csv").read_text())
    assert all(float(row["samples_per_s"]) > 0 for row in rows) and len(rows) == runs
