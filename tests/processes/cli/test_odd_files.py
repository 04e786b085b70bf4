"""Pipes, devices, endless and unreadable files in place of any file: a line says so, the rest is
told, and nothing waits."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from other_user import AS_NOBODY, NOBODY
from record_samples import a_run, a_sweep, ended_ok, paths

from dlperf_hpc.data import opening
from dlperf_hpc.data.opening import find, open_shard
from dlperf_hpc.errors import DataError, SpecError, WeightsError
from dlperf_hpc.sweepfile.declarations import SampleLayout
from dlperf_hpc.train import workloads as weights
from dlperf_hpc.train.backends import deepspeed

PIPE = "is a named pipe, not a file"


def dlperf(
    *arguments: object, cwd: Path, as_other: bool = False, memory_mb: int = 0
) -> subprocess.CompletedProcess[str]:
    """A verb in a process of its own; AssertionError for a traceback, or if it does not end."""
    other = AS_NOBODY if as_other and os.geteuid() == 0 else []
    limit = ["prlimit", f"--as={memory_mb << 20}"] if memory_mb else []
    done = subprocess.run(
        [*other, *limit, sys.executable, "-m", "dlperf_hpc", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "XDG_CACHE_HOME": str(cwd / "cache"), "MPLCONFIGDIR": str(cwd / "mpl")},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that another user can enter and write, which pytest's are not."""
    path = Path(tempfile.mkdtemp(prefix="odd-"))
    path.chmod(0o777)
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", str(path)], check=False)
    shutil.rmtree(path)


def a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def test_odd_files_in_a_sweep_are_remarks_and_the_rest_is_told(tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    runs = [a_run(repeat=repeat) for repeat in range(1, 7)]
    a_sweep(root, runs)
    for run in runs:
        ended_ok(root, run)
    a_pipe(paths(root, runs[0]).log)
    a_pipe(paths(root, runs[1]).record)
    paths(root, runs[2]).log.unlink()
    paths(root, runs[2]).log.symlink_to("/dev/zero")
    with open(paths(root, runs[3]).log, "wb") as file:
        file.truncate(2 << 30)
    paths(root, runs[4]).record.write_text("[" * 100_000)
    done = dlperf("report", root, "--out", "out", cwd=tmp_path)
    rows = json.loads((tmp_path / "out/report.json").read_text())["runs"]
    status = {row["run"]: row["status"] for row in rows}
    assert status[runs[4].id] == status[runs[5].id] == "ok", done.stderr
    for run, words in ((runs[0], PIPE), (runs[2], "is a device"), (runs[3], "has more than")):
        assert status[run.id] != "ok"
        assert f"{paths(root, run).log}: cannot be read: {words}" in done.stdout + done.stderr
    assert f"{paths(root, runs[1]).record}: cannot be read: {PIPE}" in done.stdout + done.stderr
    told = dlperf("status", root, cwd=tmp_path)
    assert "6" in told.stdout and "unknown" in told.stdout
    shown = dlperf("logs", root, runs[0].id, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "") and PIPE in shown.stderr
    assert "end status=ok" in dlperf("logs", root, runs[5].id, cwd=tmp_path).stdout


def test_odd_files_among_external_logs_are_remarks(tmp_path: Path) -> None:
    """A sweep's manifest that is a pipe is one of them: what lies beside it is read as logs."""
    logs = tmp_path / "logs"
    logs.mkdir()
    os.mkfifo(logs / "manifest.json")
    os.mkfifo(logs / "a.zip")
    (logs / "device.log").symlink_to("/dev/zero")
    lines = "".join(f"0/{n}, SamplesPerSec=100.5\n" for n in range(1, 9))
    (logs / "1n1g").mkdir()
    (logs / "1n1g" / "bert_b32_fp32_1.log").write_text(lines)
    odd = logs / "1n1g" / os.fsdecode(b"bert\n_b32_\xff_fp32_2.log")
    odd.write_text(lines.replace("100.5", "101.5"))  # else it is a copy
    told = ["--model", "bert", "--batch-size", "32"]
    done = dlperf("report", "logs", "--out", "out", *told, cwd=tmp_path)
    both = done.stdout + done.stderr
    assert f"logs/manifest.json: cannot be read: {PIPE}" in both
    assert f"logs/a.zip: cannot be read: {PIPE}" in both
    assert "logs/device.log: cannot be read: is a device, not a file" in both
    assert len(json.loads((tmp_path / "out/report.json").read_text())["runs"]) == 2
    for path in (logs / "a.zip", "/dev/stdin"):
        done = dlperf("extract", "--log_dir", path, cwd=tmp_path)
        assert done.returncode == 2 and f"{path}: cannot be read: is a" in done.stderr


def test_odd_files_among_text_and_vocabularies_are_refused(tmp_path: Path) -> None:
    """Each in one line: nothing is waited for, and no device is read for ever."""
    text, pipe, deep = tmp_path / "text", tmp_path / "pipe", tmp_path / "deep.json"
    text.write_text("A sentence. Another one.\n")
    os.mkfifo(pipe)
    deep.write_text('{"text": "x"}\n{"text": ' + "[" * 100_000 + "\n")
    learn = ["--train-tokenizer"]
    for given, said in (
        ([pipe, "--format", "jsonl", *learn], f"error: {pipe}: cannot be read: {PIPE}"),
        (["/dev/zero", "--format", "jsonl", *learn], "is a device, not a file"),
        ([deep, "--format", "megatron", *learn], f"error: {deep}: line 2: not a JSON object"),
        ([text, "--format", "hdf5", "--vocab", "/dev/zero"], "cannot be read as a vocabulary: is"),
        ([text, "--format", "hdf5", "--vocab", pipe], f"as a vocabulary: {PIPE}"),
        ([text, "--format", "megatron", "--vocab", text, "--merges", pipe], f"{pipe}: cannot be"),
    ):
        done = dlperf("prepare", *given, "--out", tmp_path / "out", cwd=tmp_path)
        assert done.returncode == 1 and said in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_odd_files_among_prepared_data_are_refused(tmp_path: Path) -> None:
    index, data = tmp_path / "a.idx", tmp_path / "a.bin"
    os.mkfifo(index)
    data.write_bytes(opening.INDEX_MAGIC + bytes(100))
    layout = SampleLayout("gpt2", 100, 16)
    for path, said in ((data, PIPE), (index, PIPE), (Path("/dev/zero"), "is a device")):
        with pytest.raises(DataError, match=said):
            open_shard(path, layout)
    odd: list[Any] = [["a.bin"], {"../a.bin": {}}, {"/etc/passwd": {}}, 7, [["a"]]]
    for files in odd:
        content = {"manifest_version": 1, "files": files}
        (tmp_path / "manifest.json").write_text(json.dumps(content))
        assert find(str(tmp_path)) == [data] or files == {}
        assert not opening.vouches(content, data, 100)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert opening.read_manifest(tmp_path) == {}


def test_what_a_rank_reads_is_no_pipe_either(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(WeightsError, match=PIPE):
        weights.read(pipe, {})
    with pytest.raises(SpecError, match=PIPE):
        deepspeed._read(pipe)


def test_what_grows_without_end_is_read_in_little_memory_and_to_a_bound(tmp_path: Path) -> None:
    """A gzip of a line of 250 MB, and an xz of 1.5 GB in 250 kB. The 1.5 GB of address space are
    mostly those of the libraries that are loaded."""
    logs = tmp_path / "logs"
    logs.mkdir()
    piece = b"0/1, SamplesPerSec=" * (1 << 16)
    with gzip.open(logs / "line.log.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(piece)
    frame = lzma.compress(piece * 25, preset=0)
    (logs / "bomb.log.xz").write_bytes(frame * 50)
    with zipfile.ZipFile(logs / "logs.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.log", piece * 16)
    done = dlperf("report", "logs", "--out", "out", cwd=tmp_path, memory_mb=1500)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no log in a known format" in done.stderr
    assert "bomb.log.xz: is not read to its end: " in done.stderr


def test_what_another_user_cannot_read_is_a_remark_and_the_rest_is_reported(place: Path) -> None:
    """As another user where root runs the tests, whose rights know no modes; else as this one."""
    sweeps = place / "sweeps"
    for name in ("one", "two", "three"):
        a_sweep(sweeps / name, runs := [a_run("1n1g"), a_run("1n2g"), a_run("1n4g")])
        for run in runs:
            ended_ok(sweeps / name, run)
    if os.geteuid() == 0:
        for path in [sweeps, *sweeps.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    hidden = paths(sweeps / "one", runs[0])
    hidden.record.chmod(0)
    hidden.log.chmod(0)
    folder = paths(sweeps / "one", runs[1]).log.parent
    folder.chmod(0)
    (sweeps / "two" / "manifest.json").write_text('{"schema": "dlperf-manifest/1", "sweep": 7}')
    (sweeps / "three").chmod(0)
    done = dlperf("report", sweeps, "--out", place / "out", cwd=place, as_other=True)
    both = done.stdout + done.stderr
    rows = json.loads((place / "out/report.json").read_text())["runs"]
    assert [row["status"] for row in rows].count("ok") == 1, both
    for path in (hidden.record, paths(sweeps / "one", runs[1]).record, sweeps / "three"):
        assert f"{path}: cannot be read: Permission denied" in both
    assert f"{sweeps / 'two' / 'manifest.json'}" in both
    for verb in ("report", "status", "logs", "cancel", "archive"):
        done = dlperf(verb, sweeps / "three", cwd=place, as_other=True)
        assert done.returncode == 2 and "Permission denied" in done.stderr
