"""``extract``: what DLPerf's scripts print and write, number for number where they are right."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pprint
import re
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import external_logs
import pytest
from external_logs import DEEPSPEED_LISTING, TENSORFLOW_LISTING, deepspeed, tf2_bert, write
from record_samples import a_sweep, ended_ok, many
from report_samples import case, tokens

from dlperf_hpc.cli import extract, report
from dlperf_hpc.reporting import extraction

REAL = os.environ.get("DLPERF_REAL_LOGS")


class Done(NamedTuple):
    code: object
    out: str
    notes: list[str]


def run(*arguments: object, where: Path) -> Done:
    """As a user does it in the directory ``where``."""
    out, err = io.StringIO(), io.StringIO()
    argv = [str(argument) for argument in arguments]
    with contextlib.chdir(where), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = extract.main(argv)
        except SystemExit as exit_:
            code = exit_.code
    return Done(code, out.getvalue(), err.getvalue().splitlines())


def result(where: Path, name: str = "bz32") -> Any:
    return json.loads((where / "result" / f"{name}_result.json").read_text(), parse_constant=_never)


def _never(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def expected(listing: Mapping[str, Any]) -> dict[str, Any]:
    """DLPerf's JSON."""
    return {
        listing["model"]: {
            topology: {
                "average_speed": row["average"],
                "batch_size_per_device": listing["batch_size"],
                "median_speed": row["median"],
                "speedup": row["speedup"],
            }
            for topology, row in listing["topologies"].items()
        }
    }


def screen(listing: Mapping[str, Any], folder: str, name: str) -> str:
    """DLPerf's screen, logs in their order."""
    lines = []
    for topology, row in listing["topologies"].items():
        runs: dict[int, float] = {}
        for repeat, speed in enumerate(row["speeds"], 1):
            runs[repeat] = speed
            lines.append(f"{folder}/{topology}/{name}_{repeat}.log {runs}")
    lines.append(pprint.pformat(expected(listing)))
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(where: Path, logs: Mapping[str, str]) -> None:
    for name, text in logs.items():
        write(where / "logs" / "deepspeed" / "bert" / "bz32" / name, text)


LOG_DIR = "--log_dir=logs/deepspeed/bert/bz32"


# --- the published listings


@pytest.mark.parametrize(
    ("listing", "make", "rule"),
    [
        (DEEPSPEED_LISTING, functools.partial(deepspeed, digits=6), "default"),
        (DEEPSPEED_LISTING, deepspeed, "deepspeed-logs"),
        (TENSORFLOW_LISTING, tf2_bert, "default"),
        (TENSORFLOW_LISTING, tf2_bert, "tf2-bert-time"),
    ],
    ids=["deepspeed", "deepspeed-logs", "tensorflow", "tf2-bert-time"],
)
def test_published_listings_come_out_digit_for_digit(
    tmp_path: Path, listing: dict[str, Any], make: Any, rule: str
) -> None:
    external_logs.write_listing(tmp_path, listing, make)
    batch_size = listing["batch_size"]
    folder = f"logs/{listing['framework']}/bert/bz{batch_size}"
    done = run(
        f"--log_dir={folder}", f"--batch_size_per_device={batch_size}", "--rule", rule,
        where=tmp_path,
    )  # fmt: skip
    assert done.code == 0
    shown = screen(listing, folder, f"bert_b{batch_size}_fp32")
    assert done.out == f"{shown}Saving result to ./result/bz{batch_size}_result.json\n"
    text = (tmp_path / "result" / f"bz{batch_size}_result.json").read_text()
    assert text == json.dumps(expected(listing)) + "\n"


def test_what_is_printed_of_the_deepspeed_listing(tmp_path: Path) -> None:
    """Some of it as it stands in DLPerf's report, so that nothing above is compared to itself."""
    external_logs.write_listing(tmp_path, DEEPSPEED_LISTING, functools.partial(deepspeed, digits=6))
    done = run(LOG_DIR, where=tmp_path)
    folder = "logs/deepspeed/bert/bz32/1n1g"
    assert f"{folder}/bert_b32_fp32_2.log {{1: 148.42, 2: 143.61}}\n" in done.out
    assert (
        "{'bert': {'1n1g': {'average_speed': 146.31,\n"
        "                   'batch_size_per_device': 32,\n"
        "                   'median_speed': 147.81,\n"
        "                   'speedup': 1.0},\n"
    ) in done.out
    assert done.out.endswith(
        "                   'speedup': 33.15}}}\nSaving result to ./result/bz32_result.json\n"
    )
    assert [note.partition(": ")[2].partition(":")[0] for note in done.notes] == [
        "super-linear at 4n8g",
        "bimodal at 1n1g",
    ]


def test_json_tells_what_was_written(tmp_path: Path) -> None:
    external_logs.write_listing(tmp_path, DEEPSPEED_LISTING, deepspeed)
    plain = run(LOG_DIR, "--rule", "deepspeed-logs", where=tmp_path)
    written = (tmp_path / "result" / "bz32_result.json").read_bytes()
    done = run(LOG_DIR, "--rule", "deepspeed-logs", "--json", where=tmp_path)
    assert (done.code, done.notes) == (plain.code, plain.notes)
    told = json.loads(done.out, parse_constant=_never)
    assert told["schema"] == "dlperf-extract/1" and told["rule"] == "deepspeed-logs[20:120]"
    assert [f"note: {note}" for note in told["notes"]] == plain.notes
    (file,) = told["files"]
    assert file["path"] == "./result/bz32_result.json" and file["label"] == ""
    assert file["result"] == json.loads(written) == result(tmp_path)
    assert plain.out.startswith("\n".join(file["logs"])) and len(file["logs"]) > 20
    assert (tmp_path / "result" / "bz32_result.json").read_bytes() == written


def test_the_clock_of_deepspeed_counts_milliseconds(tmp_path: Path) -> None:
    external_logs.write_listing(tmp_path, DEEPSPEED_LISTING, deepspeed)
    assert run(LOG_DIR, where=tmp_path).code == 0
    for topology, row in expected(DEEPSPEED_LISTING)["bert"].items():
        found = result(tmp_path)["bert"][topology]
        assert found["median_speed"] == pytest.approx(row["median_speed"], rel=5e-5)


@pytest.mark.processes
def test_the_flags_of_the_deepspeed_listing(tmp_path: Path) -> None:
    """Accumulation is 1024 over the GPUs, as the logs state: windows without an update."""

    def make(speed: float, topology: str) -> str:
        nodes, gpus = (int(digits) for digits in re.findall("[0-9]+", topology))
        return deepspeed(speed, topology, accumulation=1024 // (nodes * gpus))

    folder = external_logs.write_listing(tmp_path, DEEPSPEED_LISTING, make)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert report.main([str(folder), "--out", str(tmp_path / "out")]) == 0
    told = json.loads((tmp_path / "out" / "report.json").read_text())
    flags = {case["topology"]: set(case["flags"]) for case in told["cases"]}
    steps = {case["topology"]: case["optimizer_steps"] for case in told["cases"]}
    assert steps == {"1n1g": 0, "1n4g": 0, "1n8g": 0, "2n8g": 1, "4n8g": 3}

    def flagged(flag: str) -> list[str]:
        return [topology for topology, of in flags.items() if flag in of]

    assert flagged("super-linear") == ["4n8g"]
    assert flagged("bimodal") == ["1n1g"]
    assert flagged("no-optimizer-step") == ["1n1g", "1n4g", "1n8g"]
    assert not set().union(*flags.values()) & {"unsteady", "clock-and-print-differ", "printed-only"}
    notes = run(LOG_DIR, where=tmp_path).notes
    assert any(n.startswith("note: no-optimizer-step at 1n1g, 1n4g, 1n8g: ") for n in notes)


# --- where the scripts are wrong


def speeds(where: Path, name: str = "bz32", model: str = "bert") -> dict[str, tuple[Any, ...]]:
    """Average, median, speedup per topology."""
    return {
        topology: (cell["average_speed"], cell["median_speed"], cell["speedup"])
        for topology, cell in result(where, name)[model].items()
    }


def test_without_1n1g_there_is_no_speedup(tmp_path: Path) -> None:
    """Theirs: speedup 1.0 everywhere, the last file's speed as average, and a 1n1g of nothing."""
    put(tmp_path, {
        "1n8g/bert_b32_fp32_1.log": deepspeed(1000, "1n8g"),
        "1n8g/bert_b32_fp32_2.log": deepspeed(1020, "1n8g"),
        "2n8g/bert_b32_fp32_1.log": deepspeed(2000, "2n8g"),
    })  # fmt: skip
    done = run(LOG_DIR, "--rule=deepspeed-logs", where=tmp_path)
    assert done.code == 0
    assert speeds(tmp_path) == {"1n8g": (1010, 1010, None), "2n8g": (2000, 2000, None)}
    assert "note: no speedup: there is no 1n1g" in done.notes


@pytest.mark.parametrize("last", [119, 60, 10, 2])
@pytest.mark.parametrize("rule", ["default", "deepspeed-time", "deepspeed-logs"])
def test_a_cut_log_is_left_out_by_name(tmp_path: Path, last: int, rule: str) -> None:
    """Theirs: 0.0, NaN, or a mean of what there is enters the median."""
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(64.0, digits=6),
        "1n1g/bert_b32_fp32_2.log": deepspeed(80.0, last=last),
        "1n8g/bert_b32_fp32_1.log": deepspeed(426.24, "1n8g", digits=6),
    })  # fmt: skip
    done = run(LOG_DIR, f"--rule={rule}", where=tmp_path)
    assert done.code == 1
    assert speeds(tmp_path) == {"1n1g": (64.0, 64.0, 1.0), "1n8g": (426.24, 426.24, 6.66)}
    assert "_2.log" not in done.out and "nan" not in done.out.lower()
    (note,) = [note for note in done.notes if "left out" in note]
    assert note.startswith("note: left out: logs/deepspeed/bert/bz32/1n1g/bert_b32_fp32_2.log: ")
    assert (
        f"at iteration {last}" in note or "no line of any known format" in note or "lines" in note
    )


def test_when_no_log_counts_the_table_is_empty(tmp_path: Path) -> None:
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(64.0, last=50)})
    done = run(LOG_DIR, where=tmp_path)
    assert (done.code, result(tmp_path)) == (1, {"bert": {}})


def test_a_run_that_broke_at_the_first_update_is_left_out(tmp_path: Path) -> None:
    """Theirs: on 32 GPUs the published fp32 figures are those of the 11 steps before it."""
    broken = deepspeed(4900, "4n8g", last=31) + (
        "vs003: Traceback (most recent call last):\n"
        "vs003: UnboundLocalError: local variable 'lr_this_step' referenced before assignment\n"
    )
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(150),
        "4n8g/bert_b32_fp32_1.log": broken,
    })  # fmt: skip
    done = run(LOG_DIR, where=tmp_path)
    assert done.code == 1
    assert list(speeds(tmp_path)) == ["1n1g"]
    (note,) = [note for note in done.notes if "left out" in note]
    assert "failed: line 30: Traceback" in note


def test_midnight_is_no_going_back(tmp_path: Path) -> None:
    late = datetime(2020, 12, 31, 23, 59, 25)
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": tf2_bert(64.0, batch_size=32, start=late),
        "1n1g/bert_b32_fp32_2.log": tf2_bert(64.0, batch_size=32, start=late.replace(month=8)),
    })  # fmt: skip
    assert run(LOG_DIR, where=tmp_path).code == 0
    assert speeds(tmp_path)["1n1g"] == (64.0, 64.0, 1.0)


def test_ten_nodes_and_more(tmp_path: Path) -> None:
    """In the order of the topology, not of its letters."""
    put(tmp_path, {
        "16n8g/bert_b32_fp32_1.log": deepspeed(12800.0, "16n8g"),
        "2n8g/bert_b32_fp32_1.log": deepspeed(1600.0, "2n8g"),
        "1n16g/bert_b32_fp32_1.log": deepspeed(1500.0, "1n16g"),
        "1n1g/bert_b32_fp32_10.log": deepspeed(100.0),
        "1n1g/bert_b32_fp32_2.log": deepspeed(102.0),
    })  # fmt: skip
    done = run(LOG_DIR, "--rule=deepspeed-logs", where=tmp_path)
    assert done.code == 0
    assert speeds(tmp_path) == {
        "1n1g": (101.0, 101.0, 1.0),
        "1n16g": (1500.0, 1500.0, 14.85),
        "2n8g": (1600.0, 1600.0, 15.84),
        "16n8g": (12800.0, 12800.0, 126.73),
    }
    assert list(speeds(tmp_path)) == ["1n1g", "1n16g", "2n8g", "16n8g"]
    assert "fp32_10.log {2: 102.0, 10: 100.0}\n" in done.out


def test_variants_in_one_directory_get_a_file_each(tmp_path: Path) -> None:
    """Theirs: of fp32 and fp16 the later file replaces the earlier; xla ends the script."""
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(100.0),
        "1n1g/bert_b32_fp16_1.log": deepspeed(400.0),
        "1n1g/bert_b32_fp32_xla_1.log": deepspeed(150.0),
        "1n8g/bert_b32_fp32_1.log": deepspeed(780.0, "1n8g"),
    })  # fmt: skip
    done = run(LOG_DIR, "--rule=deepspeed-logs", where=tmp_path)
    assert done.code == 0
    names = sorted(path.name for path in (tmp_path / "result").iterdir())
    assert names == [f"bz32_{label}_result.json" for label in ("fp16", "fp32-xla", "fp32")]
    assert speeds(tmp_path, "bz32_fp16") == {"1n1g": (400.0, 400.0, 1.0)}
    assert speeds(tmp_path, "bz32_fp32-xla") == {"1n1g": (150.0, 150.0, 1.0)}
    assert speeds(tmp_path, "bz32_fp32")["1n8g"] == (780.0, 780.0, 7.8)
    assert all(f"Saving result to ./result/{name}\n" in done.out for name in names)
    assert any("a result file each for fp16, fp32, fp32-xla" in note for note in done.notes)


def test_models_share_a_file_as_theirs_do(tmp_path: Path) -> None:
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(100.0),
        "1n1g/gpt2-small_b32_fp16_1.log": deepspeed(40.0),
    })  # fmt: skip
    assert run("--log_dir=logs/deepspeed/bert/bz32", where=tmp_path).code == 0
    assert list(result(tmp_path)) == ["bert", "gpt2-small"]


@pytest.mark.parametrize(
    "given",
    ["logs/deepspeed/bert/bz32/", "./logs/deepspeed/bert/bz32//", "logs/deepspeed/bert/./bz32/."],
)  # fmt: skip
def test_a_trailing_slash_names_the_same_file(tmp_path: Path, given: str) -> None:
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0)})
    done = run(f"--log_dir={given}", where=tmp_path)
    assert done.out.endswith("Saving result to ./result/bz32_result.json\n")
    assert result(tmp_path)["bert"]["1n1g"]["speedup"] == 1.0


def test_the_working_directory_may_be_the_logs(tmp_path: Path) -> None:
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0)})
    where = tmp_path / "logs" / "deepspeed" / "bert" / "bz32"
    for _ in range(2):  # the second time the result lies among the logs
        done = run("--log_dir=.", where=where)
        assert (done.code, done.notes) == (0, [])
        assert done.out.startswith("./1n1g/bert_b32_fp32_1.log {1: 100.0}\n")
    assert list(result(where)) == ["bert"]


@pytest.mark.parametrize(
    "changes",
    [
        {"timer": "timer.py:154:stop"},
        {"figures": "SamplesPerSec={0}, MemAllocated=0.26GB, MaxMemAllocated=9.02GB"},
        {"figures": "RunningAvgSamplesPerSec={0}, CurrSamplesPerSec={0}, MemAllocated=0.26GB, "
         "MaxMemAllocated=9.02GB"},
    ],
    ids=["other Python", "2021", "2022"],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["default", "deepspeed-logs", "deepspeed-time"])
def test_lines_of_other_versions(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    """Theirs: 0 for another line number in the source, ValueError for more on the line."""
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(83.4, digits=6, **changes)})
    assert run(LOG_DIR, f"--rule={rule}", where=tmp_path).code == 0
    assert speeds(tmp_path)["1n1g"] == (83.4, 83.4, 1.0)


def test_a_last_line_without_its_end_does_not_count(tmp_path: Path) -> None:
    """It may be cut within the number. Theirs: IndexError."""
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0)[:-1]})
    done = run(LOG_DIR, where=tmp_path)
    assert done.code == 1
    assert any("the file is cut within its last line" in note for note in done.notes)
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0, last=130)[:-1]})
    assert run(LOG_DIR, where=tmp_path).code == 0


def test_half_way_cells_are_rounded_as_most_of_theirs(tmp_path: Path) -> None:
    logs = {
        f"1n1g/bert_b32_fp32_{i}.log": deepspeed(speed)
        for i, speed in enumerate((23.58, 23.7, 23.6, 23.70001), 1)  # equal ones are a copy
    }
    put(tmp_path, logs)
    done = run(LOG_DIR, "--rule=deepspeed-logs", where=tmp_path)
    assert speeds(tmp_path)["1n1g"] == (23.64, 23.65, 1.0)
    assert "{1: 23.58, 2: 23.7, 3: 23.6, 4: 23.7}" in done.out  # no np.float64(23.58)


def test_their_time_script_rounds_averages_to_4_digits(tmp_path: Path) -> None:
    logs = {
        f"1n1g/bert_b32_fp32_{i}.log": deepspeed(speed, digits=6)
        for i, speed in enumerate((148.42, 143.61, 147.93, 147.81, 143.8), 1)
    }
    put(tmp_path, logs)
    assert run(LOG_DIR, "--rule=deepspeed-time", where=tmp_path).code == 0
    assert speeds(tmp_path)["1n1g"] == (146.314, 147.81, 1.0)


# --- what the command line says


def test_the_batch_size_given_is_believed_last(tmp_path: Path) -> None:
    """The scripts never use it."""
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": tf2_bert(64.0, batch_size=32),
        "1n8g/bert_b32_fp32_1.log": deepspeed(512, "1n8g", batch_size=16, accumulation=2),
    })  # fmt: skip
    done = run(LOG_DIR, "--batch_size_per_device=64", where=tmp_path)
    assert done.code == 0
    assert speeds(tmp_path, "bz32_tensorflow_bz32")["1n1g"][1] == 64.0
    assert speeds(tmp_path, "bz32_deepspeed_bz16")["1n8g"][1] == 512.0
    told = (
        "note: --batch_size_per_device=64 is not believed of 1 of 2 runs: their logs or names say"
    )
    assert [n for n in done.notes if "believed of" in n] == [f"{told} 16", f"{told} 32"]
    assert any("the log says 16" in n and "the file's name says 32" in n for n in done.notes)


def test_the_batch_size_given_is_used_where_nobody_else_says(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "1n1g" / "bert_fp32_1.log", tf2_bert(64.0))
    write(tmp_path / "logs" / "1n8g" / "bert_fp32_1.log", tf2_bert(448.0, "1n8g"))
    bare = run("--log_dir=logs", where=tmp_path)
    assert bare.code == 1
    left = [note for note in bare.notes if note.startswith("note: left out: logs/1n")]
    assert len(left) == 2 and all("samples/s (--batch-size)" in note for note in left)
    assert run("--log_dir=logs", "--batch_size_per_device=64", where=tmp_path).code == 0
    assert speeds(tmp_path, "logs") == {"1n1g": (64.0, 64.0, 1.0), "1n8g": (448.0, 448.0, 7.0)}
    assert result(tmp_path, "logs")["bert"]["1n8g"]["batch_size_per_device"] == 64


def test_the_window_is_set_as_in_the_scripts(tmp_path: Path) -> None:
    """--train_batches is the last iteration, not a number of them."""
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0, last=100)})
    assert run(LOG_DIR, where=tmp_path).code == 1
    done = run(LOG_DIR, "--warmup_batches=50", "--train_batches=100", where=tmp_path)
    assert (done.code, speeds(tmp_path)["1n1g"][1]) == (0, 100.0)
    done = run(LOG_DIR, "--train_batches=100", "--rule=deepspeed-time", where=tmp_path)
    assert (done.code, done.notes) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--log_dir"),
        (["--log_dir=nowhere"], "no such file"),
        (["--log_dir=empty"], "no file that may be a log"),
        ([LOG_DIR, "--rule=deepspeed-log"], "did you mean 'deepspeed-logs'?"),
        ([LOG_DIR, "--warmup_batches=120"], "after iteration 120 up to 120"),
        ([LOG_DIR, "--warmup_batches=-1"], "after iteration -1"),
        ([LOG_DIR, "--train_batches=90", "--rule=clock[20:120]"], "states its window"),
        ([LOG_DIR, "--train_batches=90", "--rule=total"], "has no window"),
        ([LOG_DIR, "--batch_size_per_device=0"], "is not a count"),
    ],
)
def test_requests_that_cannot_be(tmp_path: Path, arguments: list[str], says: str) -> None:
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0)})
    (tmp_path / "empty").mkdir()
    done = run(*arguments, where=tmp_path)
    assert done.code == 2
    assert says in "\n".join(done.notes)
    assert not (tmp_path / "result").exists()


def test_a_result_that_cannot_be_written(tmp_path: Path) -> None:
    put(tmp_path, {"1n1g/bert_b32_fp32_1.log": deepspeed(100.0)})
    write(tmp_path / "result", "")
    done = run(LOG_DIR, where=tmp_path)
    assert done.code == 2 and "result/bz32_result.json: cannot be written" in done.notes[-1]


def test_rules_are_listed(tmp_path: Path) -> None:
    done = run("--rules", where=tmp_path)
    assert done.code == 0
    assert "\ndeepspeed-logs\n    mean of SamplesPerSec" in done.out
    assert max(map(len, done.out.splitlines())) <= 100


# --- what is among the logs


def test_two_logs_of_one_run(tmp_path: Path) -> None:
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(100.0),
        "old/1n1g/bert_b32_fp32_1.log": deepspeed(50.0),
    })  # fmt: skip
    done = run(LOG_DIR, where=tmp_path)
    assert (done.code, speeds(tmp_path)["1n1g"][1]) == (1, 100.0)
    folder = "logs/deepspeed/bert/bz32"
    assert (
        f"note: left out: {folder}/old/1n1g/bert_b32_fp32_1.log: "
        f"{folder}/1n1g/bert_b32_fp32_1.log is run 1 of 1n1g as well, and counts"
    ) in done.notes


def test_a_log_of_tokens_alone_is_left_out_and_says_why() -> None:
    runs = tokens("1n1g", 8000.0)
    assert extraction.left_out(runs, str) == [
        "left out: 1n1g_1.log: it gives tokens/s, DLPerf's tables are in samples/s (--seq-len)"
    ]
    assert extraction.extracts(runs, str)[0].table == {"llama": {}}


def test_an_archive_of_logs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bz32.zip", "w") as archive:
        archive.writestr("1n1g/bert_b32_fp32_1.log", deepspeed(100.0))
    done = run("--log_dir=bz32.zip", where=tmp_path)
    assert (done.code, done.notes) == (0, [])
    assert done.out.startswith("bz32.zip!1n1g/bert_b32_fp32_1.log {1: 100.0}\n")
    assert speeds(tmp_path)["1n1g"] == (100.0, 100.0, 1.0)


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": deepspeed(100.0),
        "README.md": "20 warm-up iterations\n",
        "1n1g/bert_b32_fp32_2.log": "",
    })  # fmt: skip
    done = run(LOG_DIR, where=tmp_path)
    assert done.code == 1
    (note,) = done.notes
    assert "bert_b32_fp32_2.log: no line of any known format" in note


def test_figures_on_another_basis_are_told(tmp_path: Path) -> None:
    """The oldest lines of DeepSpeed's have no clock that can be read here."""
    plain = re.sub(r"(?m)^\[.*\] ", "", deepspeed(100.0))
    put(tmp_path, {
        "1n1g/bert_b32_fp32_1.log": plain,
        "1n8g/bert_b32_fp32_1.log": deepspeed(780.0, "1n8g"),
    })  # fmt: skip
    done = run(LOG_DIR, where=tmp_path)
    assert done.code == 0
    assert (
        "note: the figures do not all rest on clock[20:120], but on printed[20:120] "
        "(1 of 2 runs), clock[20:120] (1 of 2 runs)"
    ) in done.notes


def test_our_own_sweep_has_its_own_window(tmp_path: Path) -> None:
    runs = many([case("1n1g"), case("1n2g")], 2)
    a_sweep(tmp_path / "good", runs)
    for one in runs[:-1]:
        ended_ok(tmp_path / "good", one)
    done = run("--log_dir=good", where=tmp_path)
    assert done.code == 1
    assert [cell[1:] for cell in speeds(tmp_path, "good").values()] == [
        (1745.45, 1.0),
        (3490.91, 2.0),
    ]
    assert any(note.startswith("note: left out: ") and "pending" in note for note in done.notes)
    assert any("the timed window of our own logs (3 of 3 runs)" in note for note in done.notes)


def test_a_format_that_the_user_tells(tmp_path: Path) -> None:
    table = """line = '^it (?P<iteration>[0-9]+): (?P<printed>[0-9.]+)'
printed = { unit = "ms/iteration" }"""
    put(tmp_path, {f"{n}/bert_b8_fp32_1.log": told(12.5) for n in ("1n1g", "1n4g")})
    (tmp_path / "own.toml").write_text(table)
    done = run(LOG_DIR, "--format-file", str(tmp_path / "own.toml"), where=tmp_path)
    assert done.code == 0, done.notes
    assert [cell[1:] for cell in speeds(tmp_path).values()] == [(640.0, 1.0), (2560.0, 4.0)]
    (tmp_path / "own.toml").write_text(table.replace("it (", "step ("))
    done = run(LOG_DIR, "--format-file", str(tmp_path / "own.toml"), where=tmp_path)
    assert done.code == 2 and "no line of any file fits a pattern of own, as --" in " ".join(
        done.notes
    )


def told(ms: float) -> str:
    return "".join(f"it {n}: {ms} ms\n" for n in range(1, 130))


# --- real logs


@pytest.mark.skipif(not REAL, reason="DLPERF_REAL_LOGS names no directory of real logs")
@pytest.mark.parametrize("kind", ["speed", "time"])
def test_what_dlperf_published_for_real_logs(tmp_path: Path, kind: str) -> None:
    logs = Path(str(REAL)) / "tf2_resnet50"
    published = json.loads((logs / "expected.json").read_text())[kind]
    rule = {"speed": "tf2-resnet-logs", "time": "tf2-resnet-time"}[kind]
    done = run(f"--log_dir={logs}/", f"--rule={rule}", where=tmp_path)
    assert (done.code, done.notes) == (0, [])
    assert result(tmp_path, "tf2_resnet50") == published["result"]
    for topology, runs in published["per_run"].items():
        told = {int(repeat): speed for repeat, speed in runs.items()}
        assert f"{logs}/{topology}/rn50_b128_fp32_5.log {told}\n" in done.out
