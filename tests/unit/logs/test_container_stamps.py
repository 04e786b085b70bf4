"""Stamps of containers, journals and CI jobs: when a line was collected, and no clock of the
program. The forms: journalctl(1), the READMEs of kubectl and stern, raw logs of GitLab's runner 19
and of GitHub's jobs that public repositories keep as tests of their readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.launchers import detect_launcher
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult

PREFIXES = {
    "cri": "2026-01-05T10:{:02d}:{:02d}.123456789Z stdout F ",
    "kubectl": "2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "compose": "trainer-1  | ",
    "compose -t": "trainer-1  | 2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "journald": "Jan 05 10:{:02d}:{:02d} gpu07 python[4711]: ",
    "compose named": "ray-training  | ",
    "journald iso": "2026-01-05T10:{:02d}:{:02d}+0000 gpu07 python3[4711]: ",
    "journald precise": "Jan 05 10:{:02d}:{:02d}.123456 gpu07 python3[4711]: ",
    "journald full": "Mon 2026-01-05 10:{:02d}:{:02d} UTC gpu07 train.service[4711]: ",
    "journald unix": "176760{:02d}{:02d}.123456 gpu07 python3[4711]: ",
    "journald monotonic": "[  17676{:02d}{:02d}.123456] gpu07 python3[4711]: ",
    "kubectl --prefix": "[pod/bert-646cb8db6c-tgwm6/pytorch] ",
    "kubectl --prefix -t": "[pod/bert-worker-0/pytorch] 2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "stern": "bert-646cb8db6c-tgwm6 pytorch ",
    "stern -t": "\x1b[36mbert-worker-0\x1b[0m pytorch 2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "gitlab": "2026-01-05T10:{:02d}:{:02d}.123456Z 00O ",
    "gitlab +": "2026-01-05T10:{:02d}:{:02d}.123Z 01E+",
    "github": "2026-01-05T10:{:02d}:{:02d}.1234567Z ",
    "gh run view": "train (8)\tRun torchrun\t2026-01-05T10:{:02d}:{:02d}.1234567Z ",
}
LINE = (
    "{} iteration {:8d}/     500 | consumed samples: {:12d} | elapsed time per iteration (ms): "
    "500.0 | learning rate: 1.500E-04 | global batch size:    64 | lm loss: 2.6E+00 |"
)


def read(tmp_path: Path, lines: list[str]) -> RunResult:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    stated = {"nodes": 1, "gpus_per_node": 8}
    (result,) = gather([log], rule(), stated, ScanCache(None)).results
    return result


@pytest.mark.parametrize("bunched", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_they_are_taken_off_and_are_no_clock(tmp_path: Path, prefix: str, bunched: bool) -> None:
    """The program's lines have no stamps: its own milliseconds count."""
    lines = []
    for n in range(1, 131):
        seconds = 60 * (n // 60) if bunched else n
        stamp = prefix.format(seconds // 60, seconds % 60)
        lines.append(stamp + LINE.format("", n, 64 * n))
    result = read(tmp_path, lines)
    assert result.external is not None and result.external.basis == "printed"
    assert result.samples_per_s == pytest.approx(128.0)
    assert result.external.check is None
    assert any("no clock of the program" in warning for warning in result.warnings)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_the_program_s_own_clock_behind_them_counts(tmp_path: Path, prefix: str) -> None:
    lines = []
    for n in range(1, 131):
        own = f" [2026-01-05 10:{n // 2 // 60:02d}:{n // 2 % 60:02d}.{5 * (n % 2)}00000]"
        lines.append(prefix.format(55, 7) + LINE.format(own, n, 64 * n))
    result = read(tmp_path, lines)
    assert result.external is not None and result.external.basis == "clock"
    assert result.samples_per_s == pytest.approx(128.0)
    assert not any("no clock of the program" in warning for warning in result.warnings)


def test_sections_of_gitlab_stand_between_lines(tmp_path: Path) -> None:
    """Their carriage returns and colours are the terminal's."""
    stamp = "2026-01-05T10:00:05.123456Z 00O"
    start = f"{stamp} section_start:1784657178:step_script\r\x1b[0K\x1b[36;1mExecuting\x1b[0;m"
    lines = [f"{stamp} {LINE.format('', n, 64 * n)}" for n in range(1, 131)]
    end = f"{stamp} section_end:1784657999:step_script\r\x1b[0K"
    result = read(tmp_path, [start, *lines[:60], f"{stamp}+\x1b[0K", *lines[60:], end])
    assert result.samples_per_s == pytest.approx(128.0)


@pytest.mark.parametrize(
    "line", ["gpt2-xl step {} loss 3.5", "resnet-50 iter {} loss 3.5", "lr  = {}", "{}  | loss 3.5"]
)
def test_words_of_training_are_no_labels(line: str) -> None:
    head = "".join(f"{line.format(n)}\n" for n in range(50))
    assert detect_launcher(head.encode()).name == "none"
