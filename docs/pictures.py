"""The pictures of the README: what verbs print on a terminal of 80 columns, and a report's page.

``python docs/pictures.py`` measures the sweep ``quickstart`` on this machine (some minutes) and
writes its pictures into ``docs/pictures``. Terminals are drawn by rich, from what the commands
print; the page is what Debian's chromium shows of it, light and dark.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from browser import browser  # noqa: E402

PICTURES = HERE / "pictures"
SWEEP = "quickstart"
WIDTH = 80
_DLPERF = (sys.executable, "-m", "dlperf_hpc")
_REPORT = ["report", "logs/quick"]
_PAGE_WIDTH = 1100  # pixels
_FIGURE_ENDS = "return Math.ceil(document.getElementById('figure').getBoundingClientRect().bottom)"
_PATIENCE_S = 1800.0


def printed(argv: list[str], cwd: Path) -> str:
    """What a command prints on a terminal of :data:`WIDTH` columns, colours included."""
    ours, its = pty.openpty()
    env = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    quiet = subprocess.DEVNULL  # bars, which draw over themselves
    program = subprocess.Popen([*_DLPERF, *argv], cwd=cwd, stdout=its, stderr=quiet, env=env)
    os.close(its)
    found = b""
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:
        while data := terminal.read(65536):  # OSError: the terminal's other end is closed
            found += data
    program.wait()
    return found.decode().replace("\r\n", "\n")


def draw(path: Path, command: str, output: str) -> None:
    """A terminal with a command and what it printed, as SVG."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output.rstrip("\n")))
    text = console.export_svg(title="", unique_id=path.stem)
    # Its letters come from the reader's machine: no picture of ours asks another one for a font.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL))


def photograph(page: Path) -> None:
    """A report's page down to the end of its figure, light and dark: PNGs of 256 colours."""
    from PIL import Image

    with browser() as chromium:
        for scheme in ("light", "dark"):
            picture = PICTURES / f"page-{scheme}.png"
            chromium.open(page, width=_PAGE_WIDTH, dark=scheme == "dark")
            height = chromium.run(_FIGURE_ENDS) + 16
            chromium.open(page, width=_PAGE_WIDTH, height=height, dark=scheme == "dark")
            chromium.screenshot(picture, whole=False)
            with Image.open(picture) as taken:
                taken.convert("RGB").quantize(dither=Image.Dither.NONE).save(picture, optimize=True)


@contextlib.contextmanager
def measured(sweep: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The sweep while it is measured on this machine; it is ended with the context."""
    argv = [*_DLPERF, "sweep", sweep, "--cluster", "local", "--name", "quick", "--logs", "logs"]
    with open(place / "output", "wb") as output:
        program = subprocess.Popen(argv, cwd=place, stdout=output, stderr=output)
        try:
            yield program
        finally:
            program.terminate()
            program.wait()


def _wait_for_some(place: Path) -> None:
    """Until some runs have ended and one runs; SystemExit if that takes more than half an hour."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        argv = [*_DLPERF, "status", "logs/quick", "--json"]
        done = subprocess.run(argv, cwd=place, capture_output=True, check=False)
        counts = json.loads(done.stdout)["counts"] if done.stdout else {}
        if counts.get("ok", 0) >= 4 and counts.get("running"):
            return
        time.sleep(1)
    raise SystemExit((place / "output").read_text())


def main() -> None:
    """Measure, and draw what the verbs print."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with measured(SWEEP, place) as program:
            _wait_for_some(place)
            told = printed(["status", "logs/quick"], place)
            draw(PICTURES / "status.svg", "dlperf status logs/quick", told)
            if program.wait(_PATIENCE_S):
                raise SystemExit((place / "output").read_text())
        draw(PICTURES / "report.svg", "dlperf report logs/quick", printed(_REPORT, place))
        photograph(place / "logs" / "quick" / "report" / "report.html")


if __name__ == "__main__":
    main()
