"""``dlperf cancel DIR``: end the jobs of one sweep, and no others."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import DlperfError, LedgerError, SiteError, visible

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine
    from dlperf_hpc.records.manifest import Submission


SUMMARY = "cancel the jobs of one sweep"


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "cancel",
        "Cancel the jobs of a sweep, by their ids. Runs that have ended keep their results;\n"
        "`dlperf rerun DIR --status cancelled` submits the others again.",
    )
    options.add_directory(made)
    made.add_argument("--dry-run", action="store_true", help="print the command, do not run it")
    options.add_json(made, "the cancelled jobs")
    return made


def _cancel(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.states import current, writing

    root = arguments.directory.absolute()
    if not arguments.dry_run:
        with writing(root):  # a copy's tokens may be of any job of this user's
            pass
    engine, _ = _known(root)
    stopping = engine.detached and not arguments.dry_run
    with _submitting_stopped(root, engine, stopping) as still:
        engine, submissions = _known(root, silent=True)  # with what was submitted until now
        try:
            alive = engine.live_jobs(root, submissions)
            foreign = engine.foreign(alive)
        except SiteError as error:
            again = "when the scheduler answers, type the same command again"
            print(visible(f"error: {error}; nothing was cancelled: {again}"), file=sys.stderr)
            return 1
        jobs = [job for job in alive if job not in foreign]
        if jobs and not arguments.dry_run:
            engine.cancel(jobs)
            with suppress(DlperfError):  # what the scheduler says now it soon forgets
                current(root)
    if jobs or arguments.json or not foreign:
        _print(arguments, root, engine, jobs)
    for job, user in foreign.items():
        messages.say(f"error: job {job} belongs to {user}: only {user} can cancel it")
    if still:
        words = "arrays that are submitted from now on are not cancelled; type the same again then"
        print(visible(f"error: {still}; {words}"), file=sys.stderr)
    return int(bool(still or foreign))


def _print(arguments: argparse.Namespace, root: Path, engine: Engine, jobs: Sequence[str]) -> None:
    if arguments.json:
        messages.print_json({"root": str(root), "tasks": jobs})
    elif not jobs:
        print("no job of this sweep waits or runs")
    elif arguments.dry_run:
        print(visible(" ".join(engine.cancel_command(jobs))))
    else:
        print(visible(f"cancelled: {', '.join(jobs)}"))


def _known(root: Path, silent: bool = False) -> tuple[Engine, Sequence[Submission]]:
    """The engine of a sweep's directory and its submissions; of one of this user's that cannot be
    read whole what is left, LedgerError if that is nothing."""
    from dlperf_hpc.engines import AUTO, choose_engine, get_engine
    from dlperf_hpc.records import layout
    from dlperf_hpc.records.ledger import read_ledger, salvaged

    try:
        ledger = read_ledger(root)
        return get_engine(ledger.manifest.engine), ledger.noted()
    except LedgerError as error:
        engine, left = choose_engine(AUTO), salvaged(root)
        there = (layout.MANIFEST, layout.SUBMISSIONS, layout.ARRAYS, layout.JOBS)
        of_a_sweep = any((root / name).exists() for name in there)
        ours = of_a_sweep and root.stat().st_uid == os.getuid()
        if not engine.detached or not ours:
            raise
        if not left:
            raise LedgerError(
                f"{error}\nNothing is left in the directory that tells which jobs are its own, so"
                f" nothing was cancelled. `{' '.join(engine.queue_command([]))}` shows your jobs"
                " with their names and comments (dlperf-...): end the right ones with"
                f" `{' '.join(engine.cancel_command(['JOB']))}`"
            ) from error
        if not silent:
            words = "its jobs are found by the tokens that are left in the directory"
            print(visible(f"note: {error}\nnote: {words}"), file=sys.stderr)
        return engine, left


@contextmanager
def _submitting_stopped(root: Path, engine: Engine, wanted: bool) -> Iterator[str]:
    """Let whoever is submitting in the directory stop, and nobody begin, if that is ``wanted``;
    yields why it could not be done, '' if it was."""
    from dlperf_hpc.engines.submit import ask_to_stop, submit_lock
    from dlperf_hpc.records import layout

    with ExitStack() as held:
        why_not = ""
        # Where the lock's file is not there nobody has submitted, or we have no right to stop it.
        if wanted and os.access(root / layout.LOCK, os.W_OK):
            try:
                ask_to_stop(root)
                held.enter_context(submit_lock(root, engine.lock_patience_s))
            except LedgerError as error:
                why_not = str(error)
            except OSError as error:
                why_not = f"{root}: cannot be written: {error.strerror}"
        yield why_not


main = messages.entry(_cancel, _parser)
