"""``dlperf VERB``, which is ``python -m dlperf_hpc VERB``: each verb is a module of ``cli``.

A module of ``cli`` is a verb if it sets ``SUMMARY``, its line of ``dlperf --help``. This module
reads those lines as text: to import all verbs would take longer than the rest of the answer.
"""

from __future__ import annotations

import importlib
import os
import sys

from dlperf_hpc import leave_current_directory, version_line

_FOLDER = os.path.join(os.path.dirname(__file__), "cli")
_SUMMARY = 'SUMMARY = "'
_EPILOG = """\
`dlperf VERB --help` shows the options of a verb. A first session:
  dlperf doctor quickstart         will it work here?
  dlperf sweep quickstart          submit the sweep, or run it here
  dlperf status logs/quickstart    how do its runs stand?
  dlperf report logs/quickstart    tables, CSVs and a plot
  dlperf init .                    sweeps and a site profile, copied here to edit"""


def verbs() -> dict[str, str]:
    """Every verb and its summary, in the order of the alphabet."""
    found = {}
    for file in sorted(os.listdir(_FOLDER)):
        name, ending = os.path.splitext(file)
        if ending == ".py":
            with open(os.path.join(_FOLDER, file), encoding="utf-8") as lines:
                summary = next((line for line in lines if line.startswith(_SUMMARY)), None)
            if summary is not None:
                found[name] = summary[len(_SUMMARY) :].rstrip().rstrip('"')
    return found


def _usage() -> str:
    known = verbs()
    width = max(map(len, known))
    lines = "\n".join(f"  {verb:{width}}  {summary}" for verb, summary in known.items())
    return f"usage: dlperf VERB ...\n\nverbs:\n{lines}\n\n{_EPILOG}"


def _unknown(word: str) -> str:
    from dlperf_hpc.errors import meant, nearest

    hint = meant("verb", word) or nearest(word, verbs())
    if word.endswith(".toml"):
        hint = f"type `dlperf sweep {word}`"
    text = f" ({hint})" * bool(hint)
    return f"error: there is no verb {word!r}{text}; `dlperf --help` lists the verbs"


def main(argv: list[str] | None = None) -> int:
    """Hand the arguments to the verb's own ``main``; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:2] == ["data", "prepare"]:  # the verb's earlier name
        arguments = arguments[1:]
    if "_ARGCOMPLETE" in os.environ:  # TAB was pressed in a shell
        from dlperf_hpc.cli.completion import verb_of_line

        arguments = verb_of_line(verbs())
    if arguments[:1] == ["help"]:  # help VERB
        arguments = [*arguments[1:2], "--help"]
    first = next(iter(arguments), "")
    if first in ("-h", "--help"):
        print(_usage())
        return 0
    if first in ("--version", "version"):
        print(version_line())
        return 0
    if first in verbs():
        module = importlib.import_module(f"dlperf_hpc.cli.{first}")
        code: int = module.main(arguments[1:])
        return code
    print(_unknown(first) if first else _usage(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    leave_current_directory()
    sys.exit(main())
