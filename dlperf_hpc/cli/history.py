"""``dlperf history DIR...``: what changed over the months, since when, and what else did then."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import usage_error

if TYPE_CHECKING:
    from dlperf_hpc.analysis.trends import Measurement

SUMMARY = "tell since when a case is faster or slower, and what else changed then"

_DESCRIPTION = """\
Put the measurements of the same cases in the order of time, and tell where their speed changed. A
measurement is what one sweep's runs of a case gave: give the directories of the sweeps, or of all
of them (logs), and archives. Exit code: 0; 1 if a case has what --fail-on names; 2 invalid request,
or nothing to put in order.
"""
_EPILOG = """\
A step needs six measurements of a case with three on either side, or more; with fewer, what cannot
be told from chance yet is `suspected`. Two measurements are what `dlperf compare A B` is for.
docs/history.md explains the words.
"""
FAIL_ON = (
    "changed", "slower", "faster", "drift", "spike", "suspected", "noisier", "quieter", "nothing",
)  # fmt: skip
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _parser() -> argparse.ArgumentParser:
    made = options.parser("history", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("paths", nargs="+", type=Path, metavar="DIR", help="directories of sweeps, or archives")
    since = "tell only of what changed on that day or later; what was before is still compared with"
    add("--since", default="", metavar="YYYY-MM-DD", help=since)
    options.add_outcome_options(made)
    fail_on = (
        f"what makes the exit code 1: {', '.join(FAIL_ON)} (default: nothing; changed: slower,"
        " faster or drift)"
    )
    add("--fail-on", default="nothing", metavar="WHAT,...", help=fail_on)
    options.add_files(made)
    options.add_json(made, "the history")
    options.add_external_options(made, accelerator=False)
    return made


def _history(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis import trends as analysis
    from dlperf_hpc.reporting import trend_tables as reporting

    tolerance, risk = options.outcome_settings(arguments)
    bad = set(options.words("--fail-on", arguments.fail_on, FAIL_ON))
    if "changed" in bad:
        bad |= {"slower", "faster", "drift"}
    if arguments.since and not _DAY.fullmatch(arguments.since):
        raise usage_error("--since", f"{arguments.since!r} is no day", "write it as 2026-05-14")
    found: list[Measurement] = []
    for path, results in options.sweeps(arguments):
        found += analysis.measurements(str(path), results)
    whole = analysis.history(found, datetime.now(timezone.utc), tolerance, risk)
    history = analysis.since(whole, arguments.since)
    if not history.trends:
        why = history.remarks or ("no run counts",)
        raise usage_error("DIR", "there is no measurement", "; ".join(why))

    def page() -> bytes:
        from dlperf_hpc.reporting.page import history_page, render

        source = " + ".join(path.name or str(path) for path in arguments.paths)
        return render(history_page.page(history, source))

    files = {
        "html": page,
        "markdown": lambda: reporting.history_markdown(history).encode(),
        "junit": lambda: reporting.history_junit(history, bad),
    }
    options.write_files(arguments, files)
    if arguments.json:
        messages.print_json(reporting.history_json(history))
    else:
        reporting.print_history(history)
    return int(any(bad & set(trend.verdicts) for trend in history.trends))


main = messages.entry(_history, _parser, one_thread=True)
