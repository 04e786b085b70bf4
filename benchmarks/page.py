"""What does the page cost? Its size, what it adds to ``report``, and how a browser takes it.

``python benchmarks/page.py [--runs 500,10000] [--rounds N] [--json]``. Each run is a log and a
record as the wrapper writes them: 2 ranks, 100 iterations. CPU seconds (of all processes) are those
of ``report`` with and without the page, in turn. The browser is Debian's chromium, headless; first
paint, the figure and a filter (one click, until figure and tables are done) are by its own clock
and by the CPU time of the page's thread, medians of the rounds. On a machine that does other things
too, only CPU times mean much.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tests" / "support"))

from browser import Browser, browser  # noqa: E402
from many_reports import made_sweep  # noqa: E402

_FILTER = """
const done = arguments[0], box = document.querySelector('fieldset[data-key] input');
const start = performance.now();
box.click();
const wait = () => {
  if (location.hash.includes('not.') === !box.checked) done(performance.now() - start);
  else setTimeout(wait, 1);
};
wait();
"""
_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def report(root: Path, out: Path, kinds: str) -> float:
    """CPU seconds, all processes, of one ``report``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "MPLCONFIGDIR": str(out.parent / "matplotlib")}
    env["XDG_CACHE_HOME"] = str(out.parent / "cache")
    argv = [sys.executable, "-m", "dlperf_hpc", "report", str(root), "--out", str(out)]
    subprocess.run([*argv, "--write", kinds], cwd=HERE, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def opened(chromium: Browser, page: Path) -> dict[str, float]:
    """Milliseconds of one opening of the page, and of one filter."""
    chromium.open(page)
    found = {"first paint": chromium.run(_PAINT)}
    found["figure drawn"] = float(chromium.run("return document.documentElement.dataset.ready"))
    found["figure drawn, CPU"] = before = busy_ms(chromium)
    found["filter"] = chromium.driver.execute_async_script(_FILTER)
    found["filter, CPU"] = busy_ms(chromium) - before
    if said := [*chromium.messages(), *chromium.requests()]:
        raise SystemExit(f"{page}: {said}")
    return found


def busy_ms(chromium: Browser) -> float:
    """CPU time of the page's thread so far: what another process takes is not in it."""
    told = chromium.command("Performance.getMetrics")["metrics"]
    return 1000 * next(float(each["value"]) for each in told if each["name"] == "TaskDuration")


def measure(place: Path, runs: int, rounds: int) -> dict[str, Any]:
    """Of one page: bytes, CPU seconds and milliseconds."""
    root = made_sweep(place, runs)
    kinds = {"without": "csv,json,md,png", "with": "csv,json,md,png,html"}
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, words in kinds.items():
            took = report(root, place / f"{name}-{runs}", words)
            if number:  # the first round is for the page cache and the bytecode
                spent[name].append(took)
    page = place / f"with-{runs}" / "report.html"
    with browser() as chromium:
        chromium.command("Performance.enable", timeDomain="threadTicks")
        shown = [opened(chromium, page) for _ in range(rounds)]
        left_out = chromium.run(
            "return [...document.querySelectorAll('#missing li')].map(e => e.textContent.trim())"
        )
    middle = {name: statistics.median(times) for name, times in spent.items()}
    return {
        "runs": runs,
        "bytes": page.stat().st_size,
        "report, CPU s": middle["without"],
        "page beyond it, CPU s": middle["with"] - middle["without"],
        **{f"{name}, ms": statistics.median(each[name] for each in shown) for name in shown[0]},
        "left out": [line for line in left_out if line.startswith("This page shows")],
    }


def show(rows: list[dict[str, Any]]) -> str:
    """A column for each number of runs."""
    lines = []
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name == "left out":
            lines += [f"{row['runs']} runs: {line}" for row in rows for line in row[name]]
        else:
            forms = [f"{cell:,}" if isinstance(cell, int) else f"{cell:.2f}" for cell in cells]
            lines.append(f"{name:24}" + "".join(f"{form:>14}" for form in forms))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="500,10000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for runs in map(int, arguments.runs.split(",")):
        with tempfile.TemporaryDirectory(prefix="page-") as name:
            rows.append(measure(Path(name), runs, arguments.rounds))
    print(json.dumps(rows, indent=1) if arguments.json else show(rows))


if __name__ == "__main__":
    main()
