"""``dlperf predict DIR...``: how fast it would be on more nodes, how sure that is, and when not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options

if TYPE_CHECKING:
    from dlperf_hpc.analysis.beyond import Failures
    from dlperf_hpc.analysis.prediction import Prediction
    from dlperf_hpc.reporting.contents import Report

SUMMARY = "predict the throughput on more nodes, with an interval"

_DESCRIPTION = """\
Predict throughput and efficiency on more nodes, from a sweep (or any logs that `dlperf report`
reads) with two or more counts of full nodes; or say why not, and what to measure first.
"""
_EPILOG = """\
Exit code: 0 everything is predicted; 1 something is; 2 invalid request, or nothing is.
docs/predict.md has the method, its errors, and where it was wrong.
  dlperf predict logs/bert_fp32 --nodes 4,8,16
  dlperf predict logs/bert_fp32 --beyond --nodes 512,2048 --failures 0.0038
"""
_MOST = 100_000  # iterations whose times are taken


def _parser() -> argparse.ArgumentParser:
    made = options.parser("predict", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("paths", nargs="+", type=Path, metavar="DIR", help="sweeps, archives, or log files")
    nodes = (
        "counts to predict (default: twice and four times the most that were measured); of a log"
        " that does not tell its nodes, the file's name may, as 2n8g"
    )
    add("--nodes", dest="targets", type=_counts, default=(), metavar="N,...", help=nodes)
    probed = "runs of the same cases on more nodes, of which the allreduce_probe alone is taken"
    add("--probes", nargs="+", type=Path, default=(), metavar="DIR", help=probed)
    beyond = (
        "for far more nodes: what network, stragglers and failures would each leave of the"
        " throughput, never one number"
    )
    add("--beyond", action="store_true", help=beyond)
    rate = "with --beyond: failures of a node in a day (Llama 3 405B: 0.0038)"
    add("--failures", type=options.failures, metavar="RATE", help=rate)
    restart = (
        "with --failures: how long a restart takes (default: as long as the measured load of a"
        " checkpoint, which is less than it takes)"
    )
    add("--restart", type=options.seconds, metavar="SECONDS", help=restart)
    options.add_json(made, "the predictions")
    options.add_external_options(made, accelerator=False, without=("nodes",))
    return made


def _counts(text: str) -> tuple[int, ...]:
    return tuple(options.count(part.strip()) for part in text.split(","))


def _predict(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis.prediction import predictions
    from dlperf_hpc.reporting.contents import Report
    from dlperf_hpc.reporting.prediction_tables import predictions_json, print_predictions

    report = Report("", options.results_below(arguments, *arguments.paths))
    probes = options.results_below(arguments, *arguments.probes) if arguments.probes else ()
    found = predictions(report.series, report.runs, arguments.targets, probes)
    if not found:
        raise messages.usage_error("DIR", "there is no run to predict from")
    if arguments.beyond:
        return _beyond(arguments, report, found)
    for name in ("failures", "restart"):
        if getattr(arguments, name):
            raise messages.usage_error(f"--{name}", "it belongs to --beyond")
    if arguments.json:
        messages.print_json(predictions_json(found))
    else:
        print_predictions(found)
    if not any(each.something for each in found):
        messages.say("nothing is predicted")
        return 2
    return int(any(each.why_not or each.refused for each in found))


def _beyond(arguments: argparse.Namespace, report: Report, found: Sequence[Prediction]) -> int:
    """What each component leaves of each series."""
    from dlperf_hpc.analysis.beyond import components
    from dlperf_hpc.reporting.prediction_tables import beyond_json, print_beyond

    if not arguments.targets:
        raise messages.usage_error("--nodes", "--beyond needs the counts of nodes")
    made = {}
    for each in found:
        failures = _failures(arguments, report, each)
        rows = components(each, arguments.targets, _times(report, each), failures)
        made[each.series] = [*rows]
    if arguments.json:
        messages.print_json(beyond_json(made))
    else:
        print_beyond(made)
    known = [not row.why_not for rows in made.values() for row in rows]
    return 0 if all(known) else 1 if any(known) else 2


def _times(report: Report, series: Prediction) -> list[float]:
    """The times of all iterations on the most full nodes, of runs that count."""
    from dlperf_hpc.analysis.prediction import MEASURED
    from dlperf_hpc.analysis.speedup import series_name
    from dlperf_hpc.records.logfile import read_timed

    measured = [each.topology for each in series.counts if each.basis == MEASURED]
    times: list[float] = []
    for run in report.runs:
        case = run.run.case
        if run.counts and series_name(case, run.sweep) == series.series:
            times += read_timed(Path(run.log)).ms.values() if case.topology in measured[-1:] else ()
    return times[:_MOST]


def _failures(arguments: argparse.Namespace, report: Report, series: Prediction) -> Failures | str:
    from dlperf_hpc.analysis.beyond import Failures

    if not arguments.failures:
        return "give --failures, of a node in a day, as your site counts them"
    saved = [m for m in report.series[series.series] if m.checkpoint_save_s]
    if not saved:
        return "no checkpoint was timed: measure with checkpoint = true"
    loads = [m.checkpoint_load_s for m in saved if m.checkpoint_load_s]
    restart = arguments.restart or median(loads or [0.0])
    return Failures(arguments.failures, saved[-1].checkpoint_save_s or 0.0, restart)


main = messages.entry(_predict, _parser, one_thread=True)
