"""``dlperf extract --log_dir=DIR``: the table of DLPerf's extraction scripts, corrected."""

from __future__ import annotations

import argparse
import json
import os
import pprint
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import counting_bar, usage_error
from dlperf_hpc.errors import LedgerError, printable, raising, visible

if TYPE_CHECKING:
    from dlperf_hpc.logs.gather import Gathered
    from dlperf_hpc.logs.interpret.rules import WindowRule
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.reporting.extraction import Extract

SUMMARY = "write DLPerf's result table and JSON from a directory of logs"

_DESCRIPTION = """\
Print and write what DLPerf's extract_*_logs*.py scripts do, from logs of any known format: a line
per log, the table, and <last part of --log_dir>_result.json. The figures equal those of the scripts
wherever the scripts are right. A log that is cut, failed or cannot be read is left out. Notes on
standard error name such logs and the figures that are in doubt. Without 1n1g there is no speedup.
"""
_EPILOG = """\
A model with several precisions, batch sizes or options gets one result file for each of them, as
bz32_fp16_result.json, because the content of the file does not name them.
Exit code: 0 every log counts, 1 some logs do not count, 2 invalid request, or no logs
"""
_LOGS = (".log", ".log.gz", ".log.zst", ".log.xz", ".log.bz2")
_WIDTH = 100
_OUT = "./result"  # as for DLPerf's scripts
_COUNTS = {
    "warmup_batches": "number of iterations before the window",
    "train_batches": "last iteration of the window",
    "batch_size_per_device": "batch size for the logs whose content and name do not state it",
}


class _ListRules(argparse.Action):
    """``--rules`` prints the window rules and ends the verb, as ``--help`` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from dlperf_hpc.logs.interpret.rules import RULES

        for name, text in RULES.items():
            indent = " " * 4
            print(name)
            print(textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    made = options.parser("extract", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    log_dir = (
        "directory of logs, as <DIR>/4n8g/bert_b32_fp32_1.log, or a zip archive of such logs;"
        " relative to the current directory (for DLPerf's scripts: relative to the script)"
    )
    add("--log_dir", required=True, metavar="DIR", help=log_dir)
    output = "directory for the result files (default: ./result)"
    add("--output_dir", default=_OUT, metavar="DIR", help=output)
    for name, what in _COUNTS.items():
        add(f"--{name}", type=int, metavar="N", help=what)
    rules = "list the window rules, and write nothing"
    add("--rules", action=_ListRules, nargs=0, help=rules)
    options.add_json(made, "the tables, the paths of their files, and the notes")
    options.add_external_options(made, accelerator=True)
    return made


def _rule(arguments: argparse.Namespace) -> WindowRule:
    """The window rule asked for, with its window; SpecError for an impossible window."""
    from dlperf_hpc.logs.interpret.rules import rule

    made = rule(arguments.rule).of_whole_windows  # the scripts need one
    given = (arguments.warmup_batches, arguments.train_batches)
    if given == (None, None):
        return made
    window = re.search(r"\[([0-9]+):([0-9]+)\]$", made.name)
    hint = "leave out --warmup_batches and --train_batches"
    if "[" in arguments.rule:
        raise usage_error("--rule", f"{arguments.rule} states its window", hint)
    if window is None:
        raise usage_error("--rule", f"{arguments.rule} has no window", hint)
    first, last = (int(end) if own is None else own for own, end in zip(given, window.groups()))
    if not 0 <= first < last:
        raise usage_error(
            "--train_batches",
            f"no window lies after iteration {first} up to {last}",
            "--train_batches is the last iteration of the window, not a number of iterations",
        )
    return rule(arguments.rule, first, last - first).of_whole_windows


def _extract(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.reporting import extraction

    window_rule = _rule(arguments)
    found = _gathered(arguments, window_rule)
    # DLPerf's tables have no place for a second measurement of a case: it is told as left out.
    found = replace(found, results=tuple(replace(each, sweep="") for each in found.results))

    def show(log: str) -> str:
        return printable(_as_given(arguments.log_dir, log))

    digits = extraction.AVERAGE_DIGITS.get(arguments.rule.partition("[")[0], 2)
    made = extraction.extracts(found.results, show, digits)
    paths = [_save(arguments, each) for each in made]
    if not arguments.json:
        for path, each in zip(paths, made):
            _show(path, each)
        sys.stdout.flush()
    out = [*extraction.left_out(found.results, show), *_unknown(found, show)]
    notes = [
        *(reason for each in made for reason in each.missing),
        *out,
        *found.unread,
        *extraction.warnings(found.results, show),
        *_of_batch_size(arguments, found.results),
        *extraction.bases(found.results, window_rule.name),
        *extraction.doubts(found.results, arguments.accelerator),
        *_of_files(made),
    ]
    if arguments.json:
        fields = extraction.as_json(arguments.log_dir, window_rule.name, zip(paths, made), notes)
        messages.print_json(fields)
    for note in notes:
        messages.say(f"note: {note}")
    return int(bool(out) or _some_unread(found))


def _some_unread(found: Gathered) -> bool:
    from dlperf_hpc.reporting.extraction import counted_logs

    rest = [name for name in (*found.unrecognised, *found.programs) if not _is_log(name)]
    counted = tuple(f"{log}:" for log in (*counted_logs(found.results), *rest))
    return any(not line.startswith(counted) for line in found.unread)


def _gathered(arguments: argparse.Namespace, window_rule: WindowRule) -> Gathered:
    """Everything below --log_dir; again for what has no batch size but the one given here."""
    from dlperf_hpc.logs.gather import gather

    weak, stated = arguments.batch_size_per_device, options.stated_settings(arguments)
    if weak is not None and weak < 1:
        raise usage_error("--batch_size_per_device", f"{weak} is not a count of 1 or more")
    paths, out = [Path(arguments.log_dir)], [Path(arguments.output_dir)]
    cache = options.cache(arguments)
    with counting_bar(in_bytes=True) as advance:
        found = gather(paths, window_rule, stated, cache, advance, out)
        if weak is None or all(result.run.case.batch_size for result in found.results):
            return found
        stated = {**stated, "batch_size": weak}
        again = gather(paths, window_rule, stated, cache, advance, out)
    by_log = {(result.log, result.attempt): result for result in again.results}
    for result in found.results:
        if result.run.case.batch_size:
            by_log[result.log, result.attempt] = result
    results = (by_log.get((each.log, each.attempt), each) for each in found.results)
    return replace(found, results=tuple(results))


def _as_given(log_dir: str, log: str) -> str:
    """A log's path beginning as the user wrote it: ``./logs/...``."""
    plain = os.path.join(str(Path(log_dir)), "")
    return os.path.join(log_dir, log[len(plain) :]) if log.startswith(plain) else log


def _save(arguments: argparse.Namespace, extract: Extract) -> str:
    from dlperf_hpc.files import make_output_directory, write_atomically
    from dlperf_hpc.records import ownership

    parts = (_last_part(arguments.log_dir), extract.label, "result.json")
    name = "_".join(filter(None, parts))
    path = os.path.join(arguments.output_dir, name)
    if arguments.output_dir == _OUT and (words := ownership.not_mine(Path(_OUT))):
        raise LedgerError(f"{words}; name a directory of yours with --output_dir")
    with raising(LedgerError, f"{path}: cannot be written"):
        make_output_directory(Path(arguments.output_dir))
        write_atomically(Path(path), json.dumps(extract.table, allow_nan=False) + "\n")
    return path


def _show(path: str, extract: Extract) -> None:
    for line in extract.lines:
        print(visible(line))
    print(visible(pprint.pformat(extract.table, sort_dicts=False)))
    print(f"Saving result to {visible(path)}")


def _last_part(log_dir: str) -> str:
    """``bz32``, also of ``logs/bz32/`` and of ``.``."""
    name = os.path.basename(os.path.abspath(log_dir)) or "logs"
    return name[: -len(".zip")] if name.lower().endswith(".zip") and name[4:] else name


def _is_log(name: str) -> bool:
    return name.lower().endswith(_LOGS)


def _unknown(found: Gathered, show: Any) -> Iterator[str]:
    """Logs that no format fits; other files are none of ours."""
    for name in found.unrecognised:
        if _is_log(name):
            yield f"left out: {show(name)}: no line of any known format (report --formats)"


def _of_batch_size(arguments: argparse.Namespace, results: Sequence[RunResult]) -> list[str]:
    from dlperf_hpc.reporting.extraction import other_batch_size

    size = arguments.batch_size_per_device
    return [] if size is None else other_batch_size(results, size)


def _of_files(made: Sequence[Extract]) -> list[str]:
    if len(made) < 2:
        return []
    labels = ", ".join(extract.label for extract in made)
    return [f"a model's runs differ in more than topology: a result file each for {labels}"]


main = messages.entry(_extract, _parser, one_thread=True)
