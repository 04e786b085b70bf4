"""``dlperf <verb>`` or ``python -m dlperf_hpc <verb>``: each verb is a module of that name."""

from __future__ import annotations

import importlib
import sys

VERBS = {
    "sweep": "submit a sweep file, or run it on this machine",
    "status": "how the runs of a sweep stand",
    "rerun": "submit again what failed, as new arrays of just those runs",
    "cancel": "cancel a sweep's jobs, and nobody else's",
    "logs": "show or follow the log of a run",
    "report": "speedup tables, CSVs and plot from job logs, ours and other people's",
    "compare": "what got faster, slower or stayed the same: two sweeps, or published results",
    "extract": "DLPerf's result table and JSON from a directory of logs",
    "archive": "a sweep's directory as one file",
    "doctor": "on this site, will it work? checks, and a job of seconds",
    "prepare": "training data from plain text; `data prepare` is the same",
}


def main(argv: list[str] | None = None) -> int:
    """Hand the arguments to the verb's own main."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:2] == ["data", "prepare"]:
        arguments = arguments[1:]
    if not arguments or arguments[0] not in VERBS:
        text = "\n".join(f"  {verb:8} {doc}" for verb, doc in VERBS.items())
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        print(
            f"usage: dlperf <verb> ...\n\n{text}\n\ndlperf <verb> --help tells more",
            file=sys.stdout if asked else sys.stderr,
        )
        return 0 if asked else 2
    module = importlib.import_module(f"dlperf_hpc.cli.{arguments[0]}")
    code: int = module.main(arguments[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
