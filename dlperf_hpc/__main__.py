"""``dlperf VERB``, which is ``python -m dlperf_hpc VERB``: each verb is a module of ``cli``.

Standard library only, and little of it: this much runs before every verb.
"""

from __future__ import annotations

import importlib
import sys

from dlperf_hpc import __version__

VERBS = {
    "sweep": "submit a sweep file to Slurm, or run it on this machine",
    "status": "show how many runs of a sweep wait, run, ended well or failed",
    "rerun": "submit the runs that failed again, as new arrays",
    "cancel": "cancel the jobs of one sweep",
    "logs": "show or follow the log of a run",
    "report": "write speedup tables, CSVs and a plot from job logs",
    "compare": "tell which cases got faster or slower: two sweeps, or published results",
    "extract": "write DLPerf's result table and JSON from a directory of logs",
    "archive": "write one zip archive of a sweep's directory",
    "doctor": "check whether a sweep will work on this site",
    "prepare": "prepare training data from plain text",
}
_EPILOG = """\
`dlperf VERB --help` shows the options of a verb. A first session:
  dlperf doctor sweeps/quickstart.toml     will it work here?
  dlperf sweep sweeps/quickstart.toml      submit the sweep, or run it here
  dlperf status logs/quickstart            how do its runs stand?
  dlperf report logs/quickstart            tables, CSVs and a plot"""


def _usage() -> str:
    width = max(map(len, VERBS))
    lines = "\n".join(f"  {verb:{width}}  {summary}" for verb, summary in VERBS.items())
    return f"usage: dlperf VERB ...\n\nverbs:\n{lines}\n\n{_EPILOG}"


def _unknown(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, VERBS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"error: there is no verb {word!r}{hint}; `dlperf --help` lists the verbs"


def main(argv: list[str] | None = None) -> int:
    """Hand the arguments to the verb's own ``main``; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:2] == ["data", "prepare"]:  # the verb's earlier name
        arguments = arguments[1:]
    first = arguments[0] if arguments else ""
    if first in VERBS:
        module = importlib.import_module(f"dlperf_hpc.cli.{first}")
        code: int = module.main(arguments[1:])
        return code
    if first in ("-h", "--help"):
        print(_usage())
        return 0
    if first == "--version":
        print(f"dlperf_hpc {__version__}")
        return 0
    print(_unknown(first) if first else _usage(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
