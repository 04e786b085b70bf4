"""Secrets that a sweep's program is given, prints and dies with: what is written for people."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeping import Workplace, local_environment

from dlperf_hpc.__main__ import main

# Every one of these ends in SECRET and a letter, so that one search finds what is left of any.
GIVEN = {
    "--token": "aSECRETa",
    "--password": "b SECRETb",
    "--hub": f"hf_{'SECRETc' * 5}",
    "--git": f"glpat-{'SECRETd' * 3}",
    "--slack": "https://hooks.slack.com/services/T0/B0/SECRETe",
    "--teams": "https://acme.webhook.office.com/webhookb2/SECRETf",
    "--data": f"https://a.blob.core.windows.net/c?sv=1&sig={'SECRETg' * 3}",
    "--db": "postgres://me:SECRETh@db.site/x",
}
PROGRAM = """\
import os, sys
print(sys.argv, {n: v for n, v in os.environ.items() if "SECRET" in v})
for n in range(1, 31):
    print(f" iteration {n:8d}/      30 | consumed samples: {4 * n:12d} |"
          f" elapsed time per iteration (ms): {2 + n % 3:.1f} | learning rate: 1.000E-04 |"
          f" global batch size:     4 | lm loss: 1.0 | loss scale: 1.0 |")
if "die" in sys.argv:
    sys.exit(f"error: {sys.argv[1:-1]} HF_TOKEN=SECRETi")
"""
SWEEP = f"""\
topologies = ["1n1g"]
repeats = 1
[measure]
warmup = 5
iterations = 20
[case]
framework = "mine"
model = "toy"
batch_size = 4
[matrix]
end = ["well", "die"]
[program.mine]
launch = "once"
run = {json.dumps(["train.py", *(w for pair in GIVEN.items() for w in pair), "{end}"])}
[program.mine.env]
WANDB_API_KEY = "SECRETj"
NCCL_SITE = "https://me:SECRETk@host/x"
[program.mine.keys]
end = "well"
[program.mine.read]
format = "megatron"
"""


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """A file, what is packed in a page, and the members of an archive."""
    data = path.read_bytes()
    yield path.name, data
    for packed in re.findall(rb"H4sI[A-Za-z0-9+/=]+", data) if path.suffix == ".html" else ():
        yield path.name, gzip.decompress(base64.b64decode(packed))
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            yield from ((name, archive.read(name)) for name in archive.namelist())


def test_no_secret_is_in_what_is_written_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Workplace(tmp_path, local_environment())
    place.write("train.py", PROGRAM)
    place.write("s.toml", SWEEP)
    sweep = ("sweep", "s.toml", "--cluster", "local")
    root = place.directory("s")
    die = "mine/toy/bz4/1n1g/toy_b4_fp32-enddie_1"
    monkeypatch.chdir(tmp_path)
    done = place.verb(*sweep, "--no-check")
    codes, texts = [done.returncode], [done.stdout + done.stderr]
    for typed in (
        (*sweep, "--dry-run"),
        ("status", root, "--why", die),
        ("status", root, "--json"),
        ("logs", root, die),
        ("report", root, "--json"),
        ("compare", root, root, "--junit", "junit.xml"),
        ("archive", root),
        ("archive", root, "--anyway", "--json"),
        ("status", "s.zip"),
    ):
        codes.append(main([str(word) for word in typed]))
        texts.append("".join(capfd.readouterr()))
    assert [text for text in texts if "SECRET" in text] == []
    assert codes == [1, 0, 1, 1, 0, 1, 0, 2, 0, 1], texts
    assert "--password" in texts[4] and "https://me:***@host" in texts[4] and "***" in texts[2]

    # What a program printed stays, and is named before it is packed; what jobs run stays too.
    logs = sorted(root.rglob("*.log"))
    assert len(logs) == 2 and all(b"SECRET" in log.read_bytes() for log in logs)
    lines = logs[0].read_bytes().splitlines()
    said = {int(each[1]) for each in re.finditer(rf"{logs[0].name}:(\d+): holds", texts[7])}
    assert said == {number for number, line in enumerate(lines, 1) if b"SECRET" in line}
    assert not any(b"SECRET" in line for line in lines if line.startswith(b"dlperf "))
    assert stat.S_IMODE((root / "manifest.json").stat().st_mode) == 0o600
    kept = {log.name for log in logs} | {"manifest.json", "s.toml", "train.py"}
    found = [file for path in tmp_path.rglob("*") if path.is_file() for file in contents(path)]
    assert {"s.zip", "junit.xml", "report.html", "runs.csv", "sweep.toml"} < {n for n, _ in found}
    assert {name for name, data in found if b"SECRET" in data} == {
        *kept,
        *(f"s/{log.relative_to(root)}" for log in logs),
    }


def test_a_script_with_a_secret_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Workplace(tmp_path, {})
    place.tiny("s", ["1n1g"])
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": "echo 7", "scontrol": "echo MaxArraySize = 1001"}.items():
        place.write(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    place.write("site.toml", '[environment.default]\nsetup = ["export HF_TOKEN=s3cr3t"]\n')
    typed = ["sweep", "s.toml", "--cluster", "slurm", "--site", "site.toml", "--no-check"]
    assert main(typed) == 0
    script, *_ = (place.directory("s") / "jobs").glob("*.sh")
    for path in (script, place.directory("s") / "manifest.json"):
        assert "s3cr3t" in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
