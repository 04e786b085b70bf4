"""Every verb over other people's words: names of files and directories, reasons, keys, outputs.

No character that a terminal acts upon, or that hides or reorders text, reaches what a verb prints,
nor the CSV and Markdown files that it writes.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from record_samples import a_run, a_sweep, ended, ended_ok

from dlperf_hpc.__main__ import main
from dlperf_hpc.engines.states import follow
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import FinalState, add_final_states

FORBIDDEN = frozenset(
    map(chr, {*range(32), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F)})
) | set(map(chr, range(0x2066, 0x206A)))
EVIL = "".join(sorted(FORBIDDEN - {"\0"})) + "\x1b]0;owned\x07\x1b[2J"
NAME = "a\x1b[2J\x1b[31m\u202eb\x9b\x7f\r\n\u2066c\u200f"
RUNS = [a_run("1n1g"), a_run("1n2g"), a_run("1n4g"), a_run("1n8g")]
EXTERNAL = """Model: resnet50
Batch size: 32
Number of GPUs: 4
Iter #0: 108.3 img/sec per GPU
Iter #1: 108.2 img/sec per GPU
Total img/sec on 4 GPU(s): 432.8 +-4.9
"""
SWEEP_FILE = """
topologies = ["1n1g"]
[case]
framework = "ddp"
model = "bert-tiny"
batch_size = 8
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a hostile name: in it a sweep, files with hostile names, sweep files."""
    made = tmp_path / NAME
    sweep = made / "sweep"
    a_sweep(sweep, RUNS)
    ended_ok(sweep, RUNS[0])
    ended(sweep, RUNS[1], Status.FAILED, EVIL)
    add_final_states(sweep, [FinalState(RUNS[2].id, Status.REJECTED, EVIL)])
    cut = sweep / f"{RUNS[3].id}.log"
    cut.parent.mkdir(parents=True)
    cut.write_text(f"dlperf {EVIL}\n{EVIL}")
    (sweep / "link").symlink_to(NAME)
    (sweep / layout.JOBS).mkdir()
    (sweep / layout.JOBS / "not-submitted.out").write_text(EVIL)
    logs = made / "logs"
    logs.mkdir()
    (logs / f"{NAME}_1n4g.log").write_text(EXTERNAL)
    (logs / f"{NAME}=.log").write_text(EVIL + EXTERNAL.replace("resnet50", "=1+1"))
    (logs / f"{NAME}.log.gz").write_bytes(b"\x1f\x8b" + b"x" * 100)
    (logs / f"{NAME}.zip").write_bytes(b"PK no zip")
    with zipfile.ZipFile(logs / "good.zip", "w") as archive:
        archive.writestr(f"{NAME}.log", "Iter #0: 1x img/sec per GPU\n" + EXTERNAL[:80])
    (made / "good.toml").write_text(SWEEP_FILE)
    (made / f"{NAME}.toml").write_text('"\\u202e\\u001b[2J\\u009b" = 1\n' + SWEEP_FILE)
    (made / "value.toml").write_text('name = "\\u001b[2J\\u202e"\n' + SWEEP_FILE)
    (made / "broken.toml").write_text("x = \u202e\x1b[2J\n")
    site = '[environment."\\u202e"]\nmpi = "\\u001b"\n"\\u0007" = 1\n'
    (made / f"{NAME}-site.toml").write_text(site)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


COMMANDS = [
    ["status", "{}/sweep"],
    *(["status", "{}/sweep", "--why", str(number)] for number in range(1, 5)),
    ["status", "{}/sweep", "--offline", "--json"],
    ["status", "{}/nothing"],
    ["status", "{}/logs/" + NAME + ".zip"],
    ["logs", "{}/sweep"],
    ["logs", "{}/sweep", EVIL],
    ["logs", "{}/sweep", RUNS[1].id],
    ["logs", "{}/sweep", RUNS[3].id],
    ["logs", "{}/sweep", RUNS[3].id, "-o"],
    ["logs", "{}/sweep", RUNS[0].id, "--path"],
    ["logs", "{}/sweep", RUNS[2].id],
    ["logs", "{}/sweep", RUNS[1].id, "--json"],
    ["report", "{}/sweep", "--out", "out"],
    ["report", "{}/sweep", "{}/logs", "--out", "{}/out", "--no-cache"],
    ["report", "{}/logs", "--json", "--out", "out"],
    ["report", "{}/logs/" + NAME + ".log.gz", "--out", "out"],
    ["report", "{}/nothing"],
    ["report", "{}/sweep", "--base", EVIL],
    ["report", "{}/sweep", "--write", EVIL],
    ["extract", "--log_dir", "{}/logs", "--output_dir", "{}/result"],
    ["extract", "--log_dir", "{}/sweep", "--output_dir", "{}/result", "--json"],
    ["compare", "{}/sweep", "{}/sweep", "--markdown", "out/c.md"],
    ["compare", "{}/logs", "{}/sweep", "--markdown", "out/d.md"],
    ["compare", "{}/sweep:model=" + NAME, "{}/sweep"],
    ["nodes", "{}/sweep"],
    ["nodes", "{}/nothing"],
    ["predict", "{}/sweep", "{}/logs"],
    ["predict", "{}/sweep", "--nodes", EVIL],
    ["predict", "{}/logs", "--json"],
    ["doctor", "--pairs", "3", "--nodelist", NAME],
    ["rerun", "{}/sweep", "--dry-run"],
    ["rerun", "{}/sweep", "--only", EVIL],
    ["rerun", "{}/sweep", "--site", "{}/" + NAME + "-site.toml", "--dry-run"],
    ["cancel", "{}/sweep", "--dry-run"],
    ["cancel", "{}/nothing"],
    ["archive", "{}/sweep", "--anyway", "--out", "{}/x.zip"],
    ["archive", "{}/nothing"],
    ["sweep", "{}/good.toml", "--dry-run", "--cluster", "local", "--logs", "{}/new"],
    ["sweep", "{}/" + NAME + ".toml", "--dry-run"],
    ["sweep", "{}/value.toml", "--dry-run"],
    ["sweep", "{}/broken.toml"],
    ["sweep", "{}/good.toml", "--only", NAME],
    ["sweep", "{}/good.toml", "--set", f"{NAME}=1"],
    ["sweep", "{}/good.toml", "--site", "{}/" + NAME + "-site.toml", "--dry-run"],
    ["doctor", "{}/" + NAME + ".toml"],
    ["doctor", "--cluster", "local", "--logs", "{}/good.toml"],
    ["prepare", "{}/nothing", "--format", "jsonl", "--out", "{}/data"],
    ["prepare", "{}/logs", "--format", "jsonl", "--out", "{}/data", "--workers", "1"],
    ["status", "a", NAME],
    ["report", f"--{NAME}"],
    [NAME],
]


def _clean(text: str) -> bool:
    return not FORBIDDEN & (set(text) - {"\n", "\t"})


def _run(words: Sequence[str]) -> int | str | None:
    try:
        return main(list(words))
    except SystemExit as end:  # argparse
        return end.code


@pytest.mark.processes
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: ascii(words[0])[1:-1][:8])
def test_no_verb_prints_what_a_terminal_acts_upon(
    place: Path, words: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert _run([word.replace("{}", str(place)) for word in words]) in (0, 1, 2)
    told = capfdbinary.readouterr()
    out, err = told.out.decode(), told.err.decode()
    assert out or err
    assert _clean(out) and _clean(err), ascii(out + err)
    assert "Traceback" not in err
    if "--json" in words and out:
        assert out.isascii() and json.loads(out)
    for path in (Path.cwd() / "out", place / "out", place / "result"):
        for file in path.glob("*.[cmj]*"):
            assert _clean(file.read_bytes().decode()), ascii(file)


def test_following_a_sweep_prints_reasons_in_one_clean_line_each(
    place: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (place / "sweep" / f"{RUNS[3].id}.log").unlink()
    add_final_states(place / "sweep", [FinalState(RUNS[3].id, Status.CANCELLED, EVIL)])
    follow(place / "sweep", 0.1)
    err = capfdbinary.readouterr().err.decode()
    assert _clean(err) and err.count(r"\x1b]0;owned\x07\x1b[2J") == 3, ascii(err)
    statuses = [line.split()[0] for line in err.splitlines() if " torch/bert/" in line]
    assert sorted(statuses) == ["cancelled", "failed", "ok", "rejected"]
