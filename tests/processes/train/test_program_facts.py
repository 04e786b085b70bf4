"""What the log says that a user's program was: its file, its repository, its image, its packages;
and the port that is named when the first one is taken."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, opened

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import supervision
from dlperf_hpc.records.store import Failure, leave_failure
from dlperf_hpc.sweepfile.programs import Command, UserProgram
from dlperf_hpc.train.program import launching
from dlperf_hpc.train.program.launching import packages_of, program_facts
from dlperf_hpc.train.program.supervisor import _look_at_port


def git(where: Path, *words: str) -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(where), *name, *words], check=True, capture_output=True)


def facts(where: Path, *own: str, words: tuple[str, ...] = ("py",)) -> dict[str, Any]:
    env = {"BATCH": "4", "HF_TOKEN": "secret", "OTHER": "x"}
    program = UserProgram("mine", "torchrun", own, env={"BATCH": "", "HF_TOKEN": ""})
    argv = (*words, "-m", "torch.distributed.run", "--nnodes", "1", *own)
    return program_facts(program, Command(argv, env, str(where), len(own)), words)


def test_the_file_and_the_changes_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    script, module = tmp_path / "train.py", tmp_path / "pkg" / "main.py"
    script.write_text("print(1)\n")
    module.write_text("print(2)\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    told = facts(tmp_path, "train.py", "--x", "y.py")
    assert told["file"] == str(script) and told["set"] == ["BATCH=4"]
    assert told["sha256"] == hashlib.sha256(b"print(1)\n").hexdigest()
    assert told["changed"] is False and len(told["commit"]) == 40 and told["image"] is None
    assert told["argv"][:3] == ["py", "-m", "torch.distributed.run"]
    digests = []
    for text in ("print(3)\n", "print(4)\n"):
        module.write_text(text)
        told = facts(tmp_path, "-m", "pkg.main")
        assert (told["file"], told["changed"]) == (str(module), True)
        digests.append(told["changes_sha256"])
    assert digests[0] != digests[1] and len(digests[0]) == 64


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    told = facts(tmp_path, "absent.py")
    assert "sha256" not in told and "commit" not in told
    assert facts(tmp_path, "sh", "-c", "x")["file"].endswith("/sh")  # found on the PATH


def test_what_identifies_an_image(tmp_path: Path) -> None:
    def image(name: str) -> str | None:
        told: str | None = facts(tmp_path, "x", words=("apptainer", "exec", name, "py"))["image"]
        return told

    digest = f"sha256:{'0123456789abcdef' * 4}"
    assert image(f"docker://registry/pytorch@{digest}") == digest
    assert image("docker://registry/pytorch:24.1") is None
    # The global header of the format, as its specification lays it out.
    own = uuid.uuid4()
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0"
    path = tmp_path / "x.sif"
    path.write_bytes(head + own.bytes + b"\0" * 64)
    assert image(str(path)) == f"sif:{own}"
    path.write_bytes(head + own.bytes[:3])
    assert image(str(path)) is None


def test_packages_are_those_of_the_programs_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)  # from where nothing is imported
    found = packages_of([sys.executable], os.environ)
    assert found["pytest"] and list(found) == sorted(found)
    assert packages_of([sys.executable, "-I", "-S"], {}) == {}  # a Python without any
    for script in ("exit 1", "echo nothing", "echo '[1]'"):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        assert packages_of([str(path)], {}) == {}
    assert packages_of([str(tmp_path / "absent")], {}) == {}


def test_another_port_is_named_where_the_first_is_taken(tmp_path: Path) -> None:
    attempt = opened(tmp_path, a_run(), launch="4711_3.0")
    folder = attempt.paths.supervised(attempt.number)
    folder.mkdir(parents=True)
    _look_at_port(attempt)
    taken = launching.port_of(attempt.launch)
    if launching.is_free(taken):
        assert supervision.read(folder, supervision.Port) is None
    with socket.create_server(("", taken)):
        _look_at_port(attempt)
        named = supervision.read(folder, supervision.Port)
        assert named is not None and (named.rank, named.taken) == (0, taken)
        assert named.port != taken and launching.is_free(named.port)


def test_a_records_codes_are_those_of_all_ranks(tmp_path: Path) -> None:
    attempt = opened(tmp_path, a_run("1n2g"))
    folder = attempt.paths.supervised(attempt.number)
    folder.mkdir(parents=True)
    assert supervision.detail(attempt) == {}
    leave_failure(attempt, Failure(1, "n1", Status.FAILED, "x", "t", code=-11, why="hang"))
    supervision.leave_packages(folder, {"torch": "2"})
    told = {"program": {"codes": [None, -11]}, "packages": {"torch": "2"}}
    assert supervision.detail(attempt) == told
    supervision.leave(folder, supervision.Ending(0, "n1", 0))
    assert supervision.detail(attempt)["program"] == {"codes": [0, -11]}
