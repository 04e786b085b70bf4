"""``dlperf doctor [SPEC]``: will it work on this site? Each line ok or what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import common
from dlperf_hpc.engines import CHOICES

if TYPE_CHECKING:
    from dlperf_hpc.doctor.examine import Question
    from dlperf_hpc.engines.base import CheckResult
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.manifest import Manifest

_EPILOG = """\
Looks at Slurm's commands, controller, partition and limits; gives each array's script to
`sbatch --test-only`; runs one job of seconds in each environment, in the site's dialect. Nothing
of the sweep is submitted. Exit code: 0 all is well (or worth a warning), 1 something FAILs.

examples:
  dlperf doctor --site mycluster
  dlperf doctor sweeps/bert_fp32.toml --site mycluster
  dlperf doctor sweeps/quickstart.toml --cluster local
"""


def _parser() -> argparse.ArgumentParser:
    made = common.parser("doctor", "On this site, will it work?", _EPILOG)
    add = made.add_argument
    add("spec", type=Path, nargs="?", help="a sweep file; without one the site alone is looked at")
    add("--cluster", choices=CHOICES, help="default: slurm where sbatch is")
    add("--site", help="site profile: a name in slurm/ or a path (default: $DLPERF_SITE)")
    add("--logs", type=Path, default=Path("logs"), help="parent of sweeps' directories")
    add("--nodes", type=_count, default=2, metavar="N", help="nodes to try at most (default 2)")
    timeout = "cancel a short job that is pending for longer (default 300)"
    add("--timeout", type=_seconds, default=300.0, metavar="S", help=timeout)
    visible = "how long a file may take to show on another machine (default 60)"
    add("--visible", type=_seconds, default=60.0, metavar="S", help=visible)
    add("--json", action="store_true", help="the results as JSON")
    return made


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a day")
    return value


def _doctor(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.doctor.examine import Question
    from dlperf_hpc.engines import choose_engine
    from dlperf_hpc.engines.site import load_site

    asked, site_name, sweep = arguments.cluster, arguments.site, None
    if arguments.spec is not None:
        from dlperf_hpc.sweepfile.load import load_sweep
        from dlperf_hpc.train.registry import registry

        sweep = load_sweep(arguments.spec, registry())
        asked, site_name = asked or sweep.cluster, site_name or sweep.site
    engine = choose_engine(asked)
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
        progress=_progress,
    )
    return _answer(question, arguments.json)


def check(manifest: Manifest, site: Site, logs: Path, as_json: bool = False) -> int:
    """What ``sweep --check`` does with a planned sweep: print every result; the exit code."""
    from dlperf_hpc.doctor.examine import Question
    from dlperf_hpc.engines import get_engine

    engine = get_engine(manifest.engine)
    return _answer(Question(engine, site, logs, manifest, progress=_progress), as_json)


def _answer(question: Question, as_json: bool) -> int:
    from dlperf_hpc.doctor.examine import examine

    results = []
    for result in examine(question):
        results.append(result)
        if not as_json:
            _progress("")
            print(result.line(), flush=True)
    counts = Counter(result.grade for result in results)
    if as_json:
        _progress("")
        print(json.dumps(_as_json(question, results, counts["FAIL"] == 0), indent=1))
    else:
        print(", ".join(f"{count} {grade}" for grade, count in counts.items()))
    return 1 if counts["FAIL"] else 0


def _as_json(question: Question, results: Iterable[CheckResult], well: bool) -> dict[str, object]:
    return {
        "engine": question.engine.name,
        "sweep": question.manifest.sweep if question.manifest else None,
        "ok": well,
        "findings": [vars(result) for result in results],
    }


def _progress(text: str) -> None:
    """What is being waited for, on the last line of a terminal; '' wipes it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:120]}", end="", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_doctor, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
