"""What one run has over time, and zooming, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import page_samples
import pytest
from browser import Browser
from record_samples import COMMUNICATION, FACTS, a_run, begun, manifest, timed

from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.writers.builtin import page
from dlperf_hpc.train import joblog
from dlperf_hpc.train.telemetry import GpuSample, over_time

ENDS = (
    "return [...document.querySelectorAll('#live-0 .role-axis-label text')]"
    ".map(e => e.textContent).sort().join()"
)


def watched(root: Path, repeat: int) -> RunResult:
    """A run of two GPUs, one of which computes for half of the time."""
    run = a_run(repeat=repeat)
    attempt = begun(root, run)
    measured = joblog.Measured(manifest([run]).measure, timed(2, 150), COMMUNICATION, FACTS)
    times = [5.0 + 0.15 * n for n in range(240)]
    states = []
    for util in (96.0, 48.0):
        samples = [GpuSample(util, 1000.0, 1755.0 - n, 640.0, 61.0, 0) for n in range(240)]
        states.append({"window": over_time(samples, times, 5.0)})
    joblog.log_gpus(attempt, states)
    joblog.log_window(attempt, measured)
    joblog.end_ok(attempt, measured, None)
    return result_of_log(attempt.paths.log)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pages")
    reports = {
        "watched": Report("watched", [watched(place / "logs", n) for n in (1, 2)]),
        "few": page_samples.few_series(),
    }
    files = {name: place / f"{name}.html" for name in reports}
    for name, report in reports.items():
        files[name].write_bytes(page(report))
    return files


def mouse(chromium: Browser, kind: str, x: float, y: float, **more: int) -> None:
    """One event of a mouse whose left button is down but for a move before anything."""
    place: dict[str, Any] = {"x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
    chromium.command("Input.dispatchMouseEvent", type=kind, **place, **more)


def dragged(chromium: Browser, start: float, end: float, **more: int) -> None:
    """Drag over the first panel, from one fraction of its plot to another, both ways alike."""
    left, top, width, height = chromium.run(
        "document.querySelector('#live').scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = document.querySelector('#live-0 .root > g > .background')"
        ".getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    )
    places = [(left + f * width, top + f * height) for f in (start, (start + end) / 2, end)]
    for kind, (x, y) in zip(("mousePressed", "mouseMoved", "mouseMoved"), places):
        mouse(chromium, kind, x, y, **more)
    mouse(chromium, "mouseReleased", *places[-1], **more)


def test_loss_and_gpus_unfold_with_their_values(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["watched"])
    chromium.run("document.querySelector('#t-runs td button').click()")
    chromium.wait("document.querySelectorAll('#detail details.curve:not([hidden])').length === 3")
    assert not chromium.run("return document.querySelector('#loss svg') !== null")  # folded
    for name, title in (("loss", "loss"), ("gpu_util", "time with a kernel running, %")):
        chromium.run(f"document.querySelector('[data-curve={name}]').open = true")
        chromium.wait(f"document.querySelector('#{name} svg') !== null")
        assert title in chromium.texts(f"#{name} svg text")
    x, y = chromium.run(
        "const all = document.querySelectorAll('#gpu_util .mark-symbol path');"
        "all[3].scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = all[3].getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]"
    )
    chromium.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    chromium.wait("document.querySelector('#tip') !== null")
    (tip,) = chromium.texts("#tip")
    assert "72.00" in tip and "48.00\N{EN DASH}96.00" in tip  # halfway between both GPUs


def test_drag_and_keys_zoom_and_escape_shows_all(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["few"], width=1280, height=800)
    whole = chromium.run(ENDS)
    dragged(chromium, 0.05, 0.45)
    chromium.wait("document.querySelector('#live p').textContent.includes('a part')")
    chromium.wait("!document.querySelector('#band')")
    zoomed = chromium.run(ENDS)
    assert zoomed != whole
    assert chromium.run("return document.querySelector('#detail').hidden")  # nothing was picked
    dragged(chromium, 0.5, 0.3, modifiers=8)
    chromium.wait(f"(() => {{ {ENDS} }})() !== '{zoomed}'")
    for key in ("Escape", "+", "Escape"):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            chromium.command("Input.dispatchKeyEvent", type=kind, key=key, **text)
        part = str(key == "+").lower()
        chromium.wait(
            f"document.querySelector('#live p').textContent.includes('a part') === {part}"
        )
    chromium.wait(f"(() => {{ {ENDS} }})() === '{whole}'")
