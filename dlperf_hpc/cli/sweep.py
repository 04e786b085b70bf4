"""``dlperf sweep SPEC``: one TOML file becomes job arrays, or runs on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import doctor, memory, messages, options, selection, submission
from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.cli.rerun import taken_by_default
from dlperf_hpc.errors import SiteError, below, nearest, number_of, printable, redacted, visible

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import CheckResult, Engine
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.engines.submit import SubmitResult
    from dlperf_hpc.logs.program_figures import TriedLog
    from dlperf_hpc.logs.scan.sources import Source
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.records.manifest import Array, Manifest
    from dlperf_hpc.sweepfile.load import Sweep
    from dlperf_hpc.sweepfile.readtable import ReadTable

SUMMARY = "submit a sweep file to Slurm, or run it on this machine"
_MOST_LINES = 3  # of a log that is tried

_EPILOG = """\
examples:
  dlperf sweep quickstart --cluster local
  dlperf sweep sweeps/bert_fp32.toml --dry-run
  dlperf sweep sweeps/bert_fp32.toml --only 1n1g,2n8g --set repeats=3
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "sweep",
        "Submit the runs of a sweep to Slurm, or run them on this machine. The same command again\n"
        "submits exactly the runs that are missing; more topologies, repeats or values of the\n"
        "matrix are added to the sweep that is there.",
        _EPILOG,
    )
    add = made.add_argument
    options.add_sweep_file(made)
    options.add_site_options(made)
    add("--name", help="name of the sweep and of its directory (default: the sweep file's)")
    only = (
        "select cases: topologies (1n1g,2n8g) or key=value, key=value,value; with several --only,"
        " the cases that all of them select"
    )
    add("--only", action="append", default=[], metavar="WHAT", help=only)
    setting = "replace a value of the sweep file; a list of values becomes part of the matrix"
    add("--set", action="append", default=[], metavar="KEY=VALUE", help=setting)
    options.add_budget(made)
    add("--dry-run", action="store_true", help="print the plan and batch scripts, submit nothing")
    check = "run the checks of `dlperf doctor` for this sweep, and submit none of its runs"
    add("--check", action="store_true", help=check)
    no_check = "submit a new sweep without a look at its environments and partition before that"
    add("--no-check", action="store_true", help=no_check)
    try_log = (
        "print what would be read of this log as a run of the sweep's program, and submit nothing"
    )
    add("--try-log", type=Path, metavar="LOG", help=try_log)
    add("--wait", action="store_true", help="follow the runs to their end, then report")
    options.add_order_options(made)
    options.add_json(made, "the plan, the submission or the report")
    return made


def _value(text: str) -> Any:
    """A value of the command line: TOML where it reads as TOML, else the text itself."""
    from dlperf_hpc.sweepfile.tomlfile import parse_toml  # no Python before 3.11 has tomllib

    try:
        tables = parse_toml(f"value = {text}")
    except ValueError:
        return text
    value = tables.pop("value")
    # 00:10:00 is a time of day in TOML, and a time limit to us.
    return text if tables or not isinstance(value, (str, int, float, list, dict)) else value


def _pairs(items: list[str], option: str) -> dict[str, Any]:
    pairs = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise usage_error(f"{option} {item}", "there is no `=`", "write key=value")
        pairs[key.strip()] = _value(text.strip())
    return pairs


def _narrowed(sweep: Sweep, only: list[str]) -> Sweep:
    cases = list(sweep.cases)
    for item in only:
        if "=" in item:
            cases = _with_value(cases, item)
        else:
            names = list(map(str.strip, item.split(",")))
            _check_topologies(names, sweep, item)
            cases = [case for case in cases if str(case.topology) in names]
        if not cases:
            raise usage_error(f"--only {item}", "no case is left")
    if sweep.base and sweep.base not in {str(case.topology) for case in cases}:
        to_do = "the same command without --only adds it, or give `dlperf report` another --base"
        messages.say(
            f"note: --only leaves out {sweep.base}, the base of the sweep: without a run of it the"
            f" report has no speedup; {to_do}"
        )
    return replace(sweep, cases=tuple(cases))


def _check_topologies(names: list[str], sweep: Sweep, item: str) -> None:
    known = list(map(str, sweep.topologies))
    for name in names:
        if name not in known:
            hint = nearest(name, known) or f"there are: {', '.join(known)}; or write key=value"
            raise usage_error(f"--only {item}", f"the sweep has no topology {name!r}", hint)


def _with_value(cases: list[Case], item: str) -> list[Case]:
    from dlperf_hpc.records.lines import flatten
    from dlperf_hpc.sweepfile.keys import renamed

    ((key, wanted),) = _pairs([item], "--only").items()
    tables = [flatten({**case.to_dict(), **dict(case.options)}) for case in cases]
    names = {name for table in tables for name in table}
    if key not in names:
        key, wanted = renamed(key, wanted)
    if key not in names:
        raise usage_error(f"--only {item}", f"no case has a key {key!r}", nearest(key, names))
    kept = [case for case, table in zip(cases, tables) if table.get(key) in _any_of(wanted)]
    if not kept:
        there = dict.fromkeys(str(table[key]) for table in tables if key in table)
        raise usage_error(f"--only {item}", "no case is left", f"there are: {', '.join(there)}")
    return kept


def _any_of(wanted: Any) -> list[Any]:
    """The values that a value of ``--only`` stands for: those of a list, those between commas, and
    itself, since a value may have a comma in it."""
    if isinstance(wanted, list):
        return wanted
    if not isinstance(wanted, str) or "," not in wanted:
        return [wanted]
    return [wanted, *map(_value, map(str.strip, wanted.split(",")))]


def _load(arguments: argparse.Namespace) -> Sweep:
    overrides = _pairs(arguments.set, "--set")
    if arguments.name is not None:
        overrides["name"] = arguments.name
    if arguments.budget is not None:
        overrides["budget_node_hours"] = arguments.budget
    sweep = options.read_sweep(arguments.spec, overrides)
    for note in sweep.notes:
        messages.say(f"note: {sweep.source}: {note}")
    return _narrowed(sweep, arguments.only)


def _sweep(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines import choose_engine
    from dlperf_hpc.engines.base import DEFAULT_BOUND
    from dlperf_hpc.engines.plan import make_manifest
    from dlperf_hpc.engines.site import load_site
    from dlperf_hpc.records import layout, ownership

    sweep = _load(arguments)
    if arguments.try_log:
        return _try_log(sweep, arguments.try_log, arguments.json)
    engine = choose_engine(arguments.cluster or sweep.cluster)
    site = load_site(arguments.site or sweep.site)
    memory.refuse(str(sweep.source), sweep.cases, site.gpu_memory_mib)
    root = (arguments.logs / sweep.name).absolute()
    # The arrays of a sweep that is on disk stay as they are: the bound need not be known.
    again = not (arguments.dry_run or arguments.check) and (root / layout.MANIFEST).exists()
    bound = DEFAULT_BOUND if again else engine.array_bound(site)
    manifest = selection.grown(
        sweep, root, lambda sweep: make_manifest(sweep, site, engine.name, bound)
    )
    if arguments.check:
        return doctor.check(manifest, site, arguments.logs, arguments.json)
    site = submission.starting_after(arguments.after, engine, site, arguments.logs)
    if arguments.dry_run:
        code = _dry_run(root, manifest, engine, site, arguments.json)
        submission.announce_report(arguments, engine)
        return code
    with ownership.sharing(site.group):
        return _submit(arguments, sweep, manifest, engine, site, root)


def _submit(
    arguments: argparse.Namespace, sweep: Sweep, manifest: Manifest, engine: Engine, site: Site,
    root: Path,
) -> int:  # fmt: skip
    from dlperf_hpc.engines import plan, submit
    from dlperf_hpc.records import layout

    engine.check(manifest, site, root)
    if not (root / layout.MANIFEST).exists():
        first = selection.select(manifest, root).manifest
        if not arguments.no_check:
            _preflight(arguments.spec, first, site, engine, root)
    plan.make_directory(root)
    with submit.submit_lock(root, engine.lock_patience_s):
        chosen = selection.select(manifest, root)
        selection.tell(chosen.lines)
        manifest = chosen.manifest
        ledger, new = plan.open_sweep(root, manifest, redacted(sweep.text))
        ledger, adopted = submit.adopt(ledger)
        arrays = submit.missing_arrays(ledger, new, manifest.runs)
        if not new:
            wanted = {run.id for run in manifest.runs}
            ledger, arrays = submit.split_arrays(ledger, site, arrays, wanted)
            submission.say_held_back(root, (run.case for run in ledger.manifest.runs))
        outcome = submit.submit(ledger, site, arrays)
        if not engine.detached:
            return _run_here(root, manifest, site, outcome, arguments.json)
    return submission.wait_and_report(
        ledger, site, adopted, outcome,
        nothing=chosen.nothing,
        left=lambda: _left_alone(root, manifest), arguments=arguments,
    )  # fmt: skip


def _preflight(spec: str, manifest: Manifest, site: Site, engine: Engine, root: Path) -> None:
    """Say on stderr what may be wrong with a new sweep; SiteError for what certainly is."""
    from dlperf_hpc.doctor.preflight import examine

    found = list(examine(manifest, site, engine, root))
    for result in found:
        if result.grade != "FAIL":
            messages.say(f"note: {_line_of(result)}")
    certain = [_line_of(result) for result in found if result.grade == "FAIL"]
    if certain:
        listed = below(certain, len(certain))
        raise SiteError(
            f"nothing was submitted, because no run of this could end well:{listed}\n"
            f"`dlperf doctor {spec}` checks more, with a short job; --no-check submits all the same"
        )


def _line_of(result: CheckResult) -> str:
    named = f" of environment {result.environment}" if result.environment else ""
    return printable(f"{result.check}{named}: {result.seen}: {result.to_do}")


def _left_alone(root: Path, manifest: Manifest) -> dict[str, int]:
    """Tell of the runs that ended badly, which only ``rerun`` takes; how many, by status."""
    from dlperf_hpc.engines import get_engine

    found = submission.unresolved_in_sweep(root, manifest)
    found.tell(taken_by_default(get_engine(manifest.engine)))
    return found.counts


def _run_here(
    root: Path, manifest: Manifest, site: Site, outcome: SubmitResult, as_json: bool
) -> int:
    """Follow the runs until the queue of this process is empty; the lock is held for as long."""
    submission.say_refused(outcome.refused)
    code = submission.follow_and_report(root, site.poll_s, as_json)
    _left_alone(root, manifest)
    return code


def _dry_run(root: Path, manifest: Manifest, engine: Engine, site: Site, as_json: bool) -> int:
    from dlperf_hpc.records.ledger import bound_to
    from dlperf_hpc.records.manifest import as_read

    chosen = selection.select(manifest, root, insist=False)
    manifest = chosen.manifest
    children = _children(root, manifest, site)
    scripts, planned = {}, as_read(manifest)
    for array in planned.arrays:
        bound = bound_to(root, planned, array)
        scripts[array.name] = engine.script(root, array, site, bound)
    found = submission.compared(root, manifest)
    if as_json:
        plan = [_planned(array, scripts[array.name], children) for array in manifest.arrays]
        made: dict[str, Any] = {"sweep": manifest.sweep, "root": str(root), "arrays": plan}
        made["memory"] = memory.values(manifest.runs)
        if manifest.until is not None:
            made["repeats"] = vars(manifest.until)
        if chosen.values:
            made["budget"] = chosen.values
        if manifest.sought:
            made["largest_batch"] = manifest.sought
        if found:
            made["directory"] = found
        messages.print_json(made)
        return 0
    texts = list(_plan_texts(manifest, engine, root, children, found))
    texts[1:1] = memory.texts(manifest.runs, site.gpu_memory_mib)
    print("\n".join(map(visible, [*texts, *("", *chosen.lines) * bool(chosen.lines)])))
    for name, script in scripts.items():
        if script is not None:
            print(visible(f"\n===== {name}: the batch script\n{script}"))
    return 0


def _plan_texts(
    manifest: Manifest, engine: Engine, root: Path, children: Mapping[tuple[str, str], str],
    found: dict[str, Any] | None,
) -> Iterator[str]:  # fmt: skip
    """The plan for people, what starts, and what stands in the way."""
    yield plan_text(manifest, engine, root)
    for (topology, program), words in children.items():
        yield f"\n{program} on {topology}, each task: {words}"
    yield from submission.turns_in_jobs(manifest.arrays)
    if sought := manifest.sought:
        how = "doubled from 1, then bisected to 1/16, within its time limit; the repeats use it:"
        of = f"the largest batch size of {number_of(len(sought), 'case')}"
        yield f"\nThe first run finds {of}, {how}{below(sought, _MOST_LINES)}"
    if found:
        yield f"\n{submission.compared_text(found)}"
    most = engine.max_nodes or sys.maxsize
    wide = dict.fromkeys(str(a.topology) for a in manifest.arrays if a.topology.nodes > most)
    if wide:
        refusal = f"more than one node, which the {engine.name} engine refuses"
        yield f"\nnote: {', '.join(wide)}: {refusal}; try --cluster slurm"


def _planned(
    array: Array, script: str | None, children: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    from dlperf_hpc.engines.plan import node_hours

    row = {
        "array": array.name,
        "topology": str(array.topology),
        "runs": [run.id for run in array.tasks],
        "time_limit_s": array.time_limit_s,
        "job_limit_s": array.job_limit_s,
        "node_hours": node_hours(array),
        "script": script,
    }
    if _child_key(array) in children:
        row["command"] = children[_child_key(array)]
    return row


def _child_key(array: Array) -> tuple[str, str]:
    return str(array.topology), array.tasks[0].case.framework


def _children(root: Path, manifest: Manifest, site: Site) -> dict[tuple[str, str], str]:
    """What each task of a user's program starts, by topology and program: its first case's."""
    from dlperf_hpc.sweepfile.programs import typed_command

    found: dict[tuple[str, str], str] = {}
    for array in manifest.arrays:
        case = array.tasks[0].case
        if not case.launch or _child_key(array) in found:
            continue
        words = site.environment_named(case.environment).command(root, ())
        made = typed_command(manifest.programs[case.framework], case, manifest.measure, words)
        env = [f"{name}={value}" for name, value in made.env.items()]
        inside = f" (in {made.workdir})" if made.workdir else ""
        found[_child_key(array)] = shlex.join([*env, *made.argv]) + inside
    return found


def plan_text(manifest: Manifest, engine: Engine, root: Path) -> str:
    """The plan for people: arrays, cases, runs, and node-hours as an upper bound."""
    from dlperf_hpc.engines.plan import node_hours

    head = ("array", "topology", "cases", "runs", "limit/run", "node-hours <=")
    rows = [head, *_rows(manifest.arrays, engine)]
    counts = Counter(run.case.id for run in manifest.runs)
    fewest, most = min(counts.values(), default=0), max(counts.values(), default=0)
    repeats = f"{fewest} to " * (fewest < most) + number_of(most, "repeat")
    total = sum(map(node_hours, manifest.arrays))
    arrays, runs = number_of(len(manifest.arrays), "array"), number_of(len(manifest.runs), "run")
    how = "one after another" if engine.one_queue else f"in {arrays}"
    title = (
        f"sweep {manifest.sweep} ({manifest.engine}): {number_of(len(counts), 'case')} x"
        f" {repeats} = {runs} {how}, at most {total:.2f}"
        f" node-hours\nlogs: {root}\n"
    )
    return f"{title}\n{messages.in_columns(rows)}"


def _rows(arrays: Sequence[Array], engine: Engine) -> Iterator[tuple[str, ...]]:
    """A row for each array; the numbered stretches of one queue's order count as one."""
    from dlperf_hpc.engines.plan import node_hours

    groups: dict[str, list[Array]] = {}
    for array in arrays:
        name = array.name.rpartition("-")[0] if engine.one_queue else array.name
        groups.setdefault(name, []).append(array)
    for name, group in groups.items():
        runs = [run for array in group for run in array.tasks]
        cases = len({run.case.id for run in runs})
        minutes = f"{group[0].time_limit_s / 60:g} min"
        hours = f"{sum(map(node_hours, group)):.2f}"
        yield name, str(group[0].topology), str(cases), str(len(runs)), minutes, hours


def _try_log(sweep: Sweep, path: Path, as_json: bool) -> int:
    """Print what would be read of a log; the exit code: 0 if there is a figure, else 1. SpecError
    if the sweep has no program; LogError if the log cannot be read."""
    from dlperf_hpc.logs.program_figures import tried

    case = _first_of_a_program(sweep)
    table, source = sweep.programs[case.framework].read, _source(path)
    trial = tried(case, table, sweep.measure, source)
    fields = {"log": str(path), "as": case.id, **_fields(trial)}
    if as_json:
        messages.print_json(fields)
    else:
        for name, value in fields.items():
            for line in value if isinstance(value, list) else [value]:
                if line is not None:
                    print(f"{name:9}  {visible(str(line))}")
    if trial.reading is None:
        _show_last_lines(source, table)
    return 0 if trial.result.rates else 1


def _first_of_a_program(sweep: Sweep) -> Case:
    cases = [case for case in sweep.cases if case.framework in sweep.programs]
    if not cases:
        hint = "a back end of dlperf_hpc writes logs of its own, which `dlperf report` reads"
        raise usage_error("--try-log", "the sweep has no [program.NAME]", hint)
    if len(cases) > 1:
        messages.say(f"note: of {len(cases)} cases the first is tried; --only selects another")
    return cases[0]


def _source(path: Path) -> Source:
    from dlperf_hpc.logs.scan.sources import Unread, find

    found = list(find([path])) if path.exists() else []
    if not path.exists():
        raise usage_error("--try-log", f"{path}: no such file")
    if len(found) != 1 or path.is_dir():
        raise usage_error("--try-log", f"{path}: {len(found)} logs", "name one log")
    (only,) = found
    if isinstance(only, Unread):
        raise usage_error("--try-log", f"{only.path}: {only.why}")
    return only


def _fields(trial: TriedLog) -> dict[str, Any]:
    result, window = trial.result, trial.result.external
    return {
        **_lines_read(trial),
        "window": window and f"after iteration {window.first}, up to {window.last}: {window.rule}",
        "factor": window and f"{window.factor:.6g} (what is printed is in {window.unit})",
        "figure": [f"{value:.6g} {unit}" for unit, value in result.rates.items()],
        "no figure": None if result.rates else result.reason,
        "warning": list(map(printable, result.warnings)),
        "signs": list(map(printable, trial.signs)),
        "not read": list(map(printable, trial.notes[:_MOST_LINES])),
    }


def _lines_read(trial: TriedLog) -> dict[str, str | None]:
    """The format of a log, and how many of its lines have a figure."""
    reading = trial.reading
    if reading is None:
        return {"format": None, "lines": None}
    lines = None
    if len(reading.steps):
        first, last = reading.steps[0].iteration, reading.steps[-1].iteration
        lines = f"{len(reading.steps)} with an iteration, {first} to {last}"
    elif reading.totals:
        lines = f"{len(reading.totals)} with a figure of the whole run"
    return {"format": reading.format, "lines": lines}


def _show_last_lines(source: Source, table: ReadTable) -> None:
    """Those of the last lines of a log without a figure that are nearest to a pattern."""
    from dlperf_hpc.logs.program_figures import near_lines
    from dlperf_hpc.logs.scan.sources import blocks

    rest = b""
    for block in blocks(source):
        rest = (rest + block)[-(1 << 16) :]
    rows = [line for line in rest.decode(errors="replace").splitlines() if line.strip()]
    messages.say("of its last lines (docs/external-logs.md says what to do):")
    for line in near_lines(table, rows, _MOST_LINES):
        print(f"  {printable(line)[:150]}", file=sys.stderr)


main = messages.entry(_sweep, _parser)
