"""``status --watch`` as a user runs it: in a terminal, into a file, left with Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from record_samples import a_sweep, begun, ended, ended_ok, many
from report_samples import case
from sweeping import wait_until

from dlperf_hpc.cli import status
from dlperf_hpc.model.result import Status

RUNS = many([case("1n1g"), case("1n2g")], 1)
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor
NOTE = "Ctrl-C leaves"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def watching(root: Path, *more: str) -> list[str]:
    words = ["status", str(root), "--watch", "--every", "1", *more]
    return [sys.executable, "-m", "dlperf_hpc", *words]


class Terminal:
    """A pseudo-terminal with a program in it, and all that it has printed so far."""

    def __init__(self, argv: list[str]) -> None:
        self.ours, self.its = pty.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self.its)
        self.text = ""
        self.program = subprocess.Popen(
            argv,
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is its, not ours
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.ours, 65536)
            except OSError as error:
                assert error.errno in (errno.EIO, errno.EBADF)
                return
            self.text += data.decode()

    def shows(self, words: str) -> bool:
        return words in self.text

    def end(self) -> int:
        """Wait for the program's end, and for the last of what it prints; its exit code."""
        code = self.program.wait(60)
        self.after = termios.tcgetattr(self.its)
        os.close(self.its)
        self.reader.join(10)
        return code

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        for descriptor in (self.its, self.ours):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    @property
    def restored(self) -> bool:
        """Whether the cursor is there again, and the terminal set as it was."""
        hidden, shown = self.text.rfind(HIDDEN), self.text.rfind(SHOWN)
        return 0 <= hidden < shown and self.after == self.before


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sweep of which one run has ended well and the other one runs."""
    a_sweep(tmp_path / "sweep", RUNS)
    ended_ok(tmp_path / "sweep", RUNS[0])
    begun(tmp_path / "sweep", RUNS[1])
    return tmp_path / "sweep"


@pytest.fixture
def terminal(root: Path) -> Iterator[Terminal]:
    made = Terminal(watching(root))
    yield made
    made.close()


def rows(text: str) -> list[str]:
    """The table's last rows of each topology and their sum, without blanks."""
    lines = [" ".join(line.split()) for line in ESCAPES.sub("", text).splitlines()]
    found = {line.split(" ")[0]: line for line in lines if line.startswith(("1n", "all"))}
    return list(found.values())


def test_it_ends_when_the_last_run_has_ended(root: Path, terminal: Terminal) -> None:
    wait_until(lambda: terminal.shows(NOTE), 60, "the first table")
    assert terminal.program.poll() is None and terminal.text.count(HIDDEN) == 1
    shown = ESCAPES.sub("", terminal.text)
    assert "running" in shown and "every 1 s" in shown
    assert "1 of 2 runs ended (50 %): 1 ok, 1 running" in shown
    ended_ok(root, RUNS[1])
    assert terminal.end() == 0 and terminal.restored
    last = ESCAPES.sub("", terminal.text).rpartition("topology")[2]
    assert "running" not in last.splitlines()[0], last
    assert [line.split(" ")[0] for line in rows(terminal.text)][:2] == ["1n1g", "1n2g"]


def test_a_run_that_failed_is_exit_code_1(root: Path, terminal: Terminal) -> None:
    wait_until(lambda: terminal.shows(NOTE), 60, "the first table")
    ended(root, RUNS[1], Status.FAILED, "rank 0 on n1: exit code 3")
    assert terminal.end() == 1 and terminal.restored
    assert "failed" in ESCAPES.sub("", terminal.text).rpartition("topology")[2]


def test_control_c_leaves_the_terminal_as_it_was(root: Path, terminal: Terminal) -> None:
    wait_until(lambda: terminal.shows(NOTE), 60, "the first table")
    os.write(terminal.ours, b"\x03")
    assert terminal.end() == 130 and terminal.restored
    assert terminal.text.rstrip().endswith("interrupted") and "Traceback" not in terminal.text
    assert rows(terminal.text.rpartition(HIDDEN)[2])[:1]  # the last screen stays
    done = subprocess.run(watching(root)[:-3], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "running" in done.stdout  # the runs went on


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_into_a_file_it_prints_once(root: Path, more: tuple[str, ...], tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with open(out, "w") as stdout, open(err, "w") as stderr:
        program = subprocess.Popen(watching(root, *more), stdout=stdout, stderr=stderr)
        try:
            ended_ok(root, RUNS[1])
            assert program.wait(60) == 0
        finally:
            program.kill()
            program.wait()
    text = out.read_text() + err.read_text()
    assert "\x1b" not in text and NOTE not in text
    assert text.count("2 of 2 runs ended (100 %): 2 ok") == 1 and text.count("topology ") == 1
    if more:
        assert json.loads(out.read_text())["counts"] == {"ok": 2}
    else:
        assert [row.split(" ")[0] for row in rows(out.read_text())] == ["1n1g", "1n2g", "all"]


def test_an_interrupt_where_there_is_no_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between two looks, where it spends its time."""
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    assert status.main([str(root), "--watch"]) == 130
    told = capsys.readouterr()
    assert "1 of 2 runs ended (50 %): 1 ok, 1 running" in told.out
    assert [row.split(" ")[0] for row in rows(told.out)] == ["1n1g", "1n2g", "all"]
    assert told.err.splitlines()[-1] == "interrupted" and "\x1b" not in told.out + told.err
