"""``dlperf predict DIR...``: how fast it would be on more nodes, how sure that is, and when not."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlperf_hpc.cli import messages, options

SUMMARY = "predict the throughput on more nodes, with an interval"

_DESCRIPTION = """\
Predict throughput and efficiency on more nodes, from a sweep (or any logs that `dlperf report`
reads) with two or more counts of full nodes; or say why not, and what to measure first.
"""
_EPILOG = """\
Exit code: 0 every count is predicted; 1 some are; 2 invalid request, or none is.
docs/predict.md has the method, its errors, and where it was wrong.
  dlperf predict logs/bert_fp32 --nodes 4,8,16
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser("predict", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("paths", nargs="+", type=Path, metavar="DIR", help="sweeps, archives, or log files")
    nodes = (
        "counts to predict (default: twice and four times the most that were measured); of a log"
        " that does not tell its nodes, the file's name may, as 2n8g"
    )
    add("--nodes", dest="targets", type=_counts, default=(), metavar="N,...", help=nodes)
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
    found = predictions(report.series, report.runs, arguments.targets)
    if not found:
        raise messages.usage_error("DIR", "there is no run to predict from")
    if arguments.json:
        messages.print_json(predictions_json(found))
    else:
        print_predictions(found)
    if not any(each.something for each in found):
        messages.say("nothing is predicted")
        return 2
    return int(any(each.why_not or each.refused for each in found))


main = messages.entry(_predict, _parser, one_thread=True)
