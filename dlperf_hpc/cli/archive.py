"""``dlperf archive DIR``: one zip archive of a sweep's directory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import LedgerError, visible

if TYPE_CHECKING:
    from dlperf_hpc.records.archives import Packed


_MOST_SAID = 20  # secrets; a log may hold one in each line
SUMMARY = "write one zip archive of a sweep's directory"


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "archive",
        "Write one zip archive of a sweep's directory: logs, records, attempts, manifest, report.\n"
        "status, report and compare read the archive as it is; unpacked it is the directory.\n"
        "Links, pipes, sockets and devices are left out, and named on standard error.",
    )
    options.add_directory(made)
    made.add_argument("--out", type=Path, help="the archive to write (default: ./<sweep>.zip)")
    what = "archive also a sweep whose runs have not all ended, and what holds secrets"
    made.add_argument("--anyway", action="store_true", help=what)
    options.add_json(made, "the archive's path and size")
    return made


def _archive(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.states import current
    from dlperf_hpc.records.archives import pack, top_name

    root = arguments.directory.absolute()
    # The scheduler forgets how a job ended: to ask for it here also writes it into the directory.
    unfinished = [r for r in current(root).results if not r.status.finished]
    if unfinished and not arguments.anyway:
        first, number = unfinished[0], len(unfinished)
        have = "1 run has" if number == 1 else f"{number} runs have"
        raise LedgerError(
            f"{root}: {have} not ended ({first.run.id}: {first.status.value}); wait for the end,"
            " or archive the sweep with --anyway"
        )
    target = arguments.out or Path(f"{top_name(root)}.zip")
    packed, size = pack(root, target, arguments.anyway), target.stat().st_size
    _say_of(packed)
    if arguments.json:
        facts = {
            "root": str(root),
            "archive": str(target),
            "files": packed.files,
            "bytes": size,
            "unfinished": [result.run.id for result in unfinished],
            "left_out": packed.left_out,
            "secrets": [dict(zip(("file", "line", "kind"), each)) for each in packed.secrets],
        }
        messages.print_json(facts)
    else:
        print(f"written: {visible(str(target))} ({packed.files} files, {size / 2**20:.1f} MiB)")
    return 0


def _say_of(packed: Packed) -> None:
    for path, line, kind in [*packed.secrets][:_MOST_SAID]:
        messages.say(f"{visible(path)}:{line}: holds a secret: {kind}")
    if len(packed.secrets) > _MOST_SAID:
        messages.say(f"{len(packed.secrets)} secrets in all (--json names each)")
    for path, why in packed.left_out.items():
        messages.say(f"left out: {visible(path)}: {why}")


main = messages.entry(_archive, _parser)
