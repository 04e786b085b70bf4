"""``dlperf doctor [SPEC]``: check whether a sweep will work on this site."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import show_wait
from dlperf_hpc.engines import choose_engine, get_engine

if TYPE_CHECKING:
    from dlperf_hpc.doctor.job import Question
    from dlperf_hpc.engines.base import CheckResult
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.manifest import Manifest

SUMMARY = "check whether a sweep will work on this site"

_DESCRIPTION = """\
Check everything that a sweep needs from this site. Each check prints one line: ok, or what was seen
and what to do.
"""
_EPILOG = """\
doctor asks Slurm about its commands, controller, partition and limits, gives each array's script to
`sbatch --test-only`, and runs one job of seconds in each environment, as the site profile says.
Nothing of the sweep is submitted. With --pairs or --all-nodes, the short jobs are those of nodes
that are named, and a node that is slow is a line that says FAIL. With --collectives, the short jobs
also time all-reduce, reduce-scatter and all-gather from 8 B to 1 GiB, within a node and between
nodes. Exit code: 0 no line says FAIL, 1 a line says FAIL, 2 invalid request.

examples:
  dlperf doctor --site mycluster
  dlperf doctor sweeps/bert_fp32.toml --site mycluster
  dlperf doctor sweeps/quickstart.toml --cluster local
  dlperf doctor --site mycluster --pairs 3
  dlperf doctor --site mycluster --collectives --nodes 4
"""

_COLLECTIVES_S, _MOST_COLLECTIVES_S = 60.0, 300.0


def _parser() -> argparse.ArgumentParser:
    made = options.parser("doctor", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    options.add_sweep_file(made, "; without one, doctor checks the site profile alone", nargs="?")
    options.add_site_options(made)
    nodes = "the most nodes that a short job may take (default: 2)"
    add("--nodes", type=options.count, default=2, metavar="N", help=nodes)
    timeout = "seconds that a short job may be pending before doctor cancels it (default: 300)"
    add("--timeout", type=options.seconds, default=300.0, metavar="S", help=timeout)
    pairs = (
        "measure pairs of idle nodes in N rounds, each with other partners: slow nodes and links"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument("--pairs", type=options.count, default=0, metavar="N", help=pairs)
    each = "run a short job on every idle node, and end with a table of nodes"
    how.add_argument("--all-nodes", action="store_true", help=each)
    exchange = "time collectives of all sizes, and end with a table"
    how.add_argument("--collectives", action="store_true", help=exchange)
    among = "with --pairs or --all-nodes: choose from these nodes (n1,n[3-5])"
    add("--nodelist", default="", metavar="NODES", help=among)
    visible = "seconds until a file must be visible on another machine (default: 60)"
    add("--visible", type=options.seconds, default=60.0, metavar="S", help=visible)
    gpu = "check the GPU of this machine instead, and write DIR/acceptance.md"
    budget = "seconds that --gpu may take (default: as many as it needs), or"
    budget += " a job of --collectives (default: 60)"
    add("--gpu", type=Path, metavar="DIR", help=gpu)
    add("--budget", type=options.seconds, metavar="S", help=budget)
    options.add_json(made, "the check results")
    return made


def _gpu(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.acceptance.pack import TABLE, as_json, failed, run_pack

    if arguments.spec is not None:
        raise messages.usage_error("--gpu", "checks this machine, and takes no sweep file")
    show: Callable[[str], None] = print
    if arguments.json:
        show = show_wait
    try:
        rows = run_pack(arguments.gpu, "cuda", arguments.budget or math.inf, show=show)
    except OSError as error:
        where, hint = str(arguments.gpu), "name a directory that you may write"
        raise messages.usage_error(where, str(error.strerror), hint) from error
    if arguments.json:
        show_wait("")
        messages.print_json(as_json(rows))
    else:
        print(arguments.gpu / TABLE)
    return int(failed(rows))


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.gpu is not None:
        return _gpu(arguments)
    from dlperf_hpc.doctor.job import Question
    from dlperf_hpc.engines.site import load_site

    options.check_nodes("--nodelist", arguments.nodelist)
    if arguments.nodelist and not (arguments.pairs or arguments.all_nodes):
        raise messages.usage_error("--nodelist", "is for --pairs and --all-nodes")
    collectives_s = _collectives_s(arguments)
    cluster, site_name, sweep = arguments.cluster, arguments.site, None
    if arguments.spec is not None:
        sweep = options.read_sweep(arguments.spec)
        cluster, site_name = cluster or sweep.cluster, site_name or sweep.site
    engine = choose_engine(cluster)
    site, manifest = load_site(site_name), None
    if sweep is not None:
        from dlperf_hpc.engines.plan import make_manifest

        manifest = make_manifest(sweep, site, engine.name, engine.array_bound(site))
    question = Question(
        engine=engine,
        site=site,
        logs=arguments.logs,
        manifest=manifest,
        nodes=arguments.nodes,
        timeout_s=arguments.timeout,
        visible_s=arguments.visible,
        pairs=arguments.pairs,
        all_nodes=arguments.all_nodes,
        among=arguments.nodelist,
        collectives_s=collectives_s,
        progress=show_wait,
    )
    return _answer(question, arguments.json)


def _collectives_s(arguments: argparse.Namespace) -> float:
    """Seconds for each job's collectives, or 0. SpecError where --budget has no use or no end."""
    if not arguments.collectives:
        if arguments.budget is not None:
            raise messages.usage_error("--budget", "is for --gpu and --collectives")
        return 0.0
    budget_s = float(arguments.budget or _COLLECTIVES_S)
    if budget_s > _MOST_COLLECTIVES_S:
        most = f"a job of --collectives takes at most {_MOST_COLLECTIVES_S:g} s"
        raise messages.usage_error("--budget", most)
    return budget_s


def check(manifest: Manifest, site: Site, logs: Path, as_json: bool = False) -> int:
    """What ``sweep --check`` does with a planned sweep: print every result; the exit code."""
    from dlperf_hpc.doctor.job import Question

    engine = get_engine(manifest.engine)
    return _answer(Question(engine, site, logs, manifest, progress=show_wait), as_json)


def _answer(question: Question, as_json: bool) -> int:
    from dlperf_hpc.doctor.examine import examine

    results: list[CheckResult] = []
    rows: list[dict[str, Any]] = []  # of nodes or of collectives
    for result in examine(question, rows):
        results.append(result)
        if not as_json:
            show_wait("")
            print(result.line(), flush=True)
    counts = Counter(result.grade for result in results)
    if as_json:
        show_wait("")
        found = {
            "engine": question.engine.name,
            "sweep": question.manifest and question.manifest.sweep,
            "ok": counts["FAIL"] == 0,
            "findings": list(map(vars, results)),
            "collectives" if question.collectives_s else "nodes": rows,
        }
        messages.print_json(found)
        return int(counts["FAIL"] > 0)
    if question.collectives_s and rows:
        from dlperf_hpc.doctor.measurements import collective_table

        print(f"\n{collective_table(rows)}\n")
    print(", ".join(f"{count} {grade}" for grade, count in counts.items()))
    return int(counts["FAIL"] > 0)


main = messages.entry(_doctor, _parser)
