"""The parser of a verb, and the options that several verbs share.

``--help`` imports this module: it imports the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dlperf_hpc import version_line
from dlperf_hpc.cli.messages import say, usage_error
from dlperf_hpc.errors import Issue, LedgerError, SpecError, meant, nearest, visible

if TYPE_CHECKING:
    from dlperf_hpc.logs.scan.search import OwnFormat, ScanCache
    from dlperf_hpc.model.case import Run
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.sweepfile.load import Sweep


hooks: list[Callable[[argparse.ArgumentParser], None]] = []
"""What is called with a verb's parser before it reads its words: by completion alone."""


class _Parser(argparse.ArgumentParser):
    """Complains in one line, and not below all options of the verb. A complaint repeats what was
    typed, and a pattern of the shell types other people's names."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(visible(message), file)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, and say where all options are shown."""
        wanting = _WANTING.fullmatch(message)
        if wanting:
            message = "; ".join(map(self._described, wanting[1].split(", ")))
        message = _VALUELESS.sub(r"\1: the value of this option is missing", message)
        message = message.removeprefix("argument ")
        self.exit(2, f"error: {self.prog}: {message}; `{self.prog} --help` shows the options\n")

    def _described(self, name: str) -> str:
        """An argument that is missing, with its line of ``--help``."""
        for action in self._actions:
            names = (*action.option_strings, action.metavar, action.dest)
            if name in names or name == "/".join(action.option_strings):
                return f"{name} is missing: {action.help}"
        return f"{name} is missing"

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but what is left over is told with what may be meant."""
        for hook in hooks:
            hook(self)
        found, left = self.parse_known_args(args, namespace)
        if left:
            self.error(self._left_over(left[0]))
        return found

    def _left_over(self, word: str) -> str:
        option = word.partition("=")[0]
        hint = meant(self.prog.rpartition(" ")[2], option) or meant("option", option)
        if not word.startswith("-"):
            return f"{word!r} is one argument too many ({self._as_a_pair(word, hint)})"
        known = [name for action in self._actions for name in action.option_strings]
        hint = hint or nearest(option, known)
        return f"there is no option {option}" + f" ({hint})" * bool(hint)

    def _as_a_pair(self, word: str, hint: str | None) -> str:
        """What to write for a word too many: with the option for pairs, if the verb has one."""
        form = ""
        for action in self._actions:
            if action.metavar == "KEY=VALUE":
                option = action.option_strings[-1]
                form = f"; write {option} KEY=VALUE, without blanks around ="
                if re.fullmatch(r"\+{0,2}[\w.]+=.*", word):
                    hint = f"write {option} {word.lstrip('+')}"
        return hint or f"a text with blanks needs quotes{form}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            there = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"there is no {value!r} (there are: {there})")


_WANTING = re.compile("the following arguments are required: (.*)")
_VALUELESS = re.compile(r"argument (\S+): expected (?:one|at least one) argument")


class _Help(argparse.RawDescriptionHelpFormatter):
    """80 columns at most. Lines are joined and wrapped, but not indented ones: commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for apart, group in itertools.groupby(text.splitlines(), lambda x: x[:1] in ("", " ")):
            block = list(group)
            if not apart:
                block = textwrap.wrap(" ".join(block), width)
            lines += block
        return "\n".join(lines)


def parser(verb: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """The argument parser of ``dlperf VERB``; ``--help`` prints both texts as they are."""
    made = _Parser(
        prog=f"dlperf {verb}", description=description, epilog=epilog, formatter_class=_Help
    )
    made.add_argument("--version", action=_Version, nargs=0, help="print the version, and exit")
    return made


class _Version(argparse.Action):
    """Argparse's own would ask git for the commit whenever a parser is made."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_line())
        parser.exit()


def add_directory(made: argparse.ArgumentParser, also: str = "") -> None:
    """The one positional argument of a verb that works on a sweep's directory."""
    made.add_argument("directory", type=Path, help=f"the sweep's directory, logs/<sweep>{also}")


def add_sweep_file(made: argparse.ArgumentParser, also: str = "", nargs: str | None = None) -> None:
    """The sweep file that a verb works on: a path, or the name of a sweep."""
    text = f"the sweep file (TOML), or the name of a sweep: quickstart, bert_fp32, ...{also}"
    made.add_argument("spec", type=Path, nargs=nargs, help=text)


def read_sweep(spec: Path, overrides: dict[str, Any] | None = None) -> Sweep:
    """The sweep of such a file, with the values of ``--set``; SpecError if it does not hold."""
    from dlperf_hpc.bundled import program_folders, sweep_file
    from dlperf_hpc.sweepfile.load import load_sweep
    from dlperf_hpc.train.registry import registry

    path = sweep_file(spec)
    return load_sweep(path, registry(), overrides, _formats(), program_folders(path))


def _formats() -> Iterator[str]:
    """The names of the log formats, which are loaded for a sweep with a program alone."""
    from dlperf_hpc.logs.formats import formats

    yield from (each.name for each in formats())


def add_json(made: argparse._ActionsContainer, what: str) -> None:
    """``--json``: ``what`` is printed as one JSON document on standard output."""
    made.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_site_options(made: argparse.ArgumentParser) -> None:
    """``--cluster``, ``--site`` and ``--logs``: where a sweep's runs go."""
    from dlperf_hpc.engines import CHOICES

    cluster = (
        "engine that starts the runs; auto takes slurm where sbatch is, else local (default: the"
        " sweep file's `cluster`, else auto)"
    )
    made.add_argument("--cluster", choices=CHOICES, help=cluster)
    site = (
        "site profile: a path, or the name of a file in slurm/, $DLPERF_SITES or"
        " ~/.config/dlperf_hpc/ (default: the sweep file's `site`, else $DLPERF_SITE)"
    )
    made.add_argument("--site", help=site)
    logs = "the directory in which each sweep has its own directory (default: logs)"
    made.add_argument("--logs", type=Path, default=Path("logs"), metavar="DIR", help=logs)


def add_order_options(made: argparse.ArgumentParser) -> None:
    """``--after`` and ``--report``: what comes before the jobs that are submitted, and after."""
    after = (
        "start when all jobs of another sweep (its directory, or its name below --logs), or this"
        " job, have ended; may be given several times. It counts for what this call submits"
    )
    made.add_argument("--after", action="append", default=[], metavar="SWEEP|JOBID", help=after)
    report = (
        "submit one more small job, which writes the sweep's report when all its jobs have ended"
        " (runs of this machine end with a report anyway)"
    )
    made.add_argument("--report", action="store_true", help=report)


def count(text: str) -> int:
    """An argument that counts something: a whole number from 1 to 10^9."""
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of 1 or more")
    return int(text)


def add_budget(made: argparse.ArgumentParser) -> None:
    """``--budget``: how many node-hours the sweep may use."""
    budget = (
        "submit only what fits in so many node-hours, of which the sweep's runs have used a part"
        " (default: the sweep's `budget_node_hours`)"
    )
    made.add_argument("--budget", type=node_hours, metavar="H", help=budget)


def _number(most: float, what: str) -> Callable[[str], float]:
    """What reads an argument that is a number above 0, and not above ``most``."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if 0 < float(text) <= most:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return read


node_hours = _number(1e9, "a number of node-hours above 0")
failures = _number(1e3, "a number of failures above 0 of a node in a day")
seconds = _number(86400, "a number of seconds up to a day")


def check_nodes(where: str, text: str) -> None:
    """SpecError for nodes that Slurm would not read as a list; none are no list."""
    from dlperf_hpc.records.forms import NODE_LIST

    if text and not re.fullmatch(NODE_LIST, text):
        raise usage_error(where, f"{text!r} is no list of nodes", "write n1,n[3-5]")


def add_outcome_options(made: argparse.ArgumentParser) -> None:
    """``--tolerance`` and ``--risk``: when a ratio of two speeds is a difference."""
    matters = "difference that does not matter (default: 2%%)"
    made.add_argument("--tolerance", default="2%", metavar="T", help=matters)
    wrong = (
        "how often an outcome may be wrong; a case with too few runs for this risk gets no outcome"
        " (default: 5%%)"
    )
    made.add_argument("--risk", default="5%", metavar="R", help=wrong)


def outcome_settings(arguments: argparse.Namespace) -> tuple[float, float]:
    """The fractions of ``--tolerance`` and ``--risk``. SpecError for what is none, and for a risk
    of 0, or of one half or more."""
    tolerance, risk = (_fraction(arguments, name) for name in ("tolerance", "risk"))
    if not 0 < risk < 0.5:
        message = f"{arguments.risk!r} is not between 0 and 50%"
        raise usage_error("--risk", message, "write it as 5%")
    return tolerance, risk


def _fraction(arguments: argparse.Namespace, name: str) -> float:
    """``2%`` or ``0.02``: from 0 to below 1."""
    text = getattr(arguments, name)
    number, percent, more = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if more or not 0 <= value < 1:
        raise usage_error(f"--{name}", f"{text!r} is not a fraction", "write it as 2% or 0.02")
    return value


def words(where: str, text: str, known: Sequence[str], noun: str = "") -> list[str]:
    """Names with commas between them. SpecError naming the option for one that is not known."""
    found = [word for word in text.replace(" ", "").split(",") if word]
    if strange := ", ".join(word for word in found if word not in known):
        raise usage_error(where, f"there is no {noun}{strange}", f"there are {', '.join(known)}")
    return found


_COUNTS = {
    "devices": "devices of the run, over all nodes",
    "nodes": "nodes of the run",
    "gpus_per_node": "devices of each node",
    "batch_size": "samples per device and iteration",
    "accumulation": "iterations per optimizer step",
    "global_batch": "samples per optimizer step, over all devices",
    "seq_len": "tokens per sample",
}
_NAMES = {
    "precision": "fp32, tf32, bf16 or fp16",
    "framework": "name of the framework that trained",
    "model": "name of the model, as bert-base",
}


def add_external_options(
    made: argparse.ArgumentParser, accelerator: bool, without: Collection[str] = ()
) -> None:
    """Options for logs of other programs: the window rule, and settings that a log lacks.
    ``accelerator``: whether the verb needs peak FLOPS, and so the name of the accelerator.
    ``without`` are counts that make no sense for all runs of the verb alike."""
    logs = made.add_argument_group("logs of other programs")
    logs.add_argument(
        "--rule",
        default="default",
        help="window rule, by name or form (`dlperf extract --rules` lists them; default: the clock"
        " between iterations 20 and 120, else the next best that the log allows)",
    )
    logs.add_argument(
        "--format-file",
        type=Path,
        metavar="FILE",
        help="read logs by the pattern that this TOML file tells, as [program.NAME.read] of a sweep"
        " does; logs that it does not fit are read as ever (docs/programs.md)",
    )
    no_cache = "read every file again, and keep nothing of it"
    logs.add_argument("--no-cache", action="store_true", help=no_cache)
    settings = made.add_argument_group("settings of the runs whose logs do not state them")
    for name, what in _COUNTS.items():
        if name not in without:
            settings.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=what)
    for name, what in _NAMES.items():
        settings.add_argument(f"--{name}", metavar="NAME", help=what)
    if accelerator:
        card = "name of the accelerator: V100, A100..."
        settings.add_argument("--accelerator", "--card", metavar="NAME", help=card)


def stated_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run that the command line states. SpecError for a number below 1."""
    given = {name: getattr(arguments, name, None) for name in (*_COUNTS, *_NAMES)}
    wrong = [
        Issue("--" + name.replace("_", "-"), f"{value} is not a count of 1 or more")
        for name, value in given.items()
        if isinstance(value, int) and value < 1
    ]
    if wrong:
        raise SpecError("command line", wrong)
    return {name: value for name, value in given.items() if value is not None}


def cache(arguments: argparse.Namespace) -> ScanCache:
    """Where the results of earlier scans by these formats are kept; nowhere with ``--no-cache``.
    SpecError for a ``--format-file`` that has no format."""
    from dlperf_hpc.logs.scan.search import ScanCache, default_path

    own = own_format(arguments)
    return ScanCache(None, own) if arguments.no_cache else ScanCache(default_path(), own)


def own_format(arguments: argparse.Namespace) -> OwnFormat | None:
    """The format that ``--format-file`` has. SpecError for a file that has none."""
    if arguments.format_file is None:
        return None
    from dlperf_hpc.sweepfile.programtables import read_table_file

    return read_table_file(arguments.format_file, list(_formats()))


def places(paths: Iterable[Path]) -> Iterator[Path]:
    """Each sweep below the directories by itself; what has none, as it is given."""
    from dlperf_hpc.logs.gather import sweeps_below

    seen: set[Path] = set()
    for path in paths:
        for place in sweeps_below([path]) or [path]:
            if place.resolve() not in seen:
                seen.add(place.resolve())
                yield place


def sweeps(arguments: argparse.Namespace) -> Iterator[tuple[Path, Sequence[RunResult]]]:
    """Each sweep below the verb's directories, with its results. LedgerError if one is named on the
    command line and cannot be read; another is left out, and standard error says so."""
    for path in places(arguments.paths):
        try:
            yield path, results_below(arguments, path)
        except LedgerError as error:
            if path in arguments.paths:
                raise
            say(f"not read: {error}")


_FILES = {
    "markdown": "also write the tables to this file",
    "html": "also write a page to look at, offline",
    "junit": "also write a JUnit file: a test for each case",
}


def add_files(made: argparse.ArgumentParser) -> None:
    """``--NAME FILE`` for each file that :func:`write_files` may write."""
    for name, what in _FILES.items():
        made.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)


def write_files(arguments: argparse.Namespace, contents: Mapping[str, Callable[[], bytes]]) -> None:
    """Write the files that the command line asks for: ``--NAME FILE`` by the name of its content.
    LedgerError if one cannot be written."""
    from dlperf_hpc.reporting.writers import write_atomic

    for name, content in contents.items():
        path = getattr(arguments, name)
        if path is not None:
            write_atomic(path, content())


def results_below(arguments: argparse.Namespace, *directories: Path) -> Sequence[RunResult]:
    """The results of all runs at and below directories or archives but for their reports; tells on
    standard error what could not be read. LedgerError if there is no log in a known format."""
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.logs.interpret.rules import rule
    from dlperf_hpc.records import layout

    found = gather(
        directories,
        rule(arguments.rule),
        stated_settings(arguments),
        cache(arguments),
        leave_out=[directory / layout.REPORT for directory in directories],
    )
    for line in found.unread:
        say(f"not read: {line}")
    return found.results


RUN_HELP = (
    "the run's id, a part of the id that no other run's id contains, the run's number in the sweep"
    " (counted from 1), or its task as the scheduler calls it (4711_3)"
)
_MOST_LISTED = 20


def resolve_run(ledger: Ledger, text: str) -> Run:
    """The one run that a text names (:data:`RUN_HELP`); SpecError that lists the runs otherwise."""
    runs = ledger.manifest.runs
    if text.isdecimal() and 1 <= int(text[:9]) <= len(runs):
        return runs[int(text[:9]) - 1]
    ids = {text, *(run for run, task in ledger.tasks().items() if task.name == text)}
    named = [run for run in runs if run.id in ids]
    found = named[:1] or [run for run in runs if text in run.id]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(f"{len(found)} runs have {text!r} in their id", found)
    raise _ambiguous(f"no run's id has {text!r}", runs)


def _ambiguous(what: str, offered: Sequence[Run]) -> SpecError:
    listed = "".join(f"\n  {run.id}" for run in offered[:_MOST_LISTED])
    if len(offered) > _MOST_LISTED:
        listed += f"\n  ... {len(offered)} in all"
    return usage_error("RUN", f"{what}; the ids are{listed}")
