"""``dlperf nodes DIR...``: which node is slow, as far as the runs that are there tell."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import usage_error

SUMMARY = "tell which node is slow, from the runs that are there"

_DESCRIPTION = """\
Tell from the runs of sweeps which node is slow: by runs of one case on different nodes, and by the
own times of each run's ranks. Nothing is submitted and nothing is left out: the verb only tells.
"""
_EPILOG = """\
Exit code: 0 no node is named; 1 a node or a device is named; 2 invalid request, or there is no run.
A node of which nothing can be said is told, and is no node that is well: `dlperf doctor --pairs 3`
measures pairs of nodes instead. docs/nodes.md explains the words.

examples:
  dlperf nodes logs/bert_fp32
  dlperf nodes logs --json           # every sweep below logs, and archives
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser("nodes", _DESCRIPTION, _EPILOG)
    what = "directories of sweeps, or archives"
    made.add_argument("paths", nargs="+", type=Path, metavar="DIR", help=what)
    options.add_outcome_options(made)
    options.add_json(made, "every node and device")
    options.add_external_options(made, accelerator=False)
    return made


def _nodes(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis.slow_nodes import examine
    from dlperf_hpc.reporting.node_tables import nodes_json, print_nodes

    tolerance, risk = options.outcome_settings(arguments)
    sweeps = [results for _, results in options.sweeps(arguments)]
    found = examine(sweeps, tolerance, risk)
    if not found.something:
        hint = "nodes are told by logs of dlperf_hpc, of runs that ended ok"
        raise usage_error("DIR", "no run that counts tells its nodes", hint)
    if arguments.json:
        messages.print_json(nodes_json(found))
    else:
        directory = "DIR"
        if len(sweeps) == 1:
            directory = messages.shortest(arguments.paths[0])
        print_nodes(found, directory)
    return int(bool(found.slow_nodes))


main = messages.entry(_nodes, _parser, one_thread=True)
