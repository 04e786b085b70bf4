"""What is odd about a case's runs: a short name for machines, a sentence with evidence for people.

A flag never changes a figure. It stands beside it, so that a reader does not have to look for
what the numbers would not have told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.machines import CEILING
from dlperf_hpc.model.case import Case, CaseFacts
from dlperf_hpc.model.result import (
    FEW_CORES,
    REST_DIFFERS,
    ExternalWindow,
    Rates,
    RunResult,
    Status,
    Window,
    own_unit,
)
from dlperf_hpc.model.statistics import (
    TARGET_COVERAGE,
    Interval,
    Sample,
    Split,
    outliers,
    two_groups,
)
from dlperf_hpc.records.layout import shared_job
from dlperf_hpc.records.nccl import ways

MIN_REPEATS = 6
"""Fewest values whose [min, max] covers the median with 95 % (96.9 %)."""

SUPER_LINEAR_WITHOUT_INTERVAL = 1.02
DROP = 0.15
CROSS_CHECK = 0.05
_LATE_S = 0.2  # by so much a busy machine brings a line late
SHORT_WINDOW_S = 5.0
MOST_SAID = 3
"""Runs, or texts of one, that a note names; of more it says how many."""
_MOST_CPUS = 10**6
_GROWTH, _GROWTH_MB = 0.02, 64

FLAGS: Mapping[str, str] = {
    "over-peak": "the fastest run needs more model FLOPS per device than the accelerator's dense "
    "peak in that precision: impossible",
    "near-peak": f"the fastest run is above {100 * CEILING:.0f} % of that peak, which matrix "
    "products alone hardly pass",
    "super-linear": "more devices than the base, and the efficiency's interval lies above 1 (with "
    f"no interval: efficiency > {SUPER_LINEAR_WITHOUT_INTERVAL})",
    "efficiency-drop": f"efficiency is more than {100 * DROP:.0f} points below that of the next "
    "smaller device count of the series",
    "no-optimizer-step": "a window that counts holds no optimizer step",
    "all-steps-skipped": "a window that counts in which every optimizer step was skipped (overflow "
    "of the loss scale)",
    "bimodal": "the runs part in two groups of at least 2, further apart than noise explains",
    "outlier": "a run is further from the median of the others, of 3 or more, than noise explains; "
    "it still counts",
    "unsteady": "a window that counts failed the steadiness test: its step times drift or jump",
    "too-few-repeats": f"fewer than {MIN_REPEATS} runs count, so that the interval of the median "
    "covers less than 95 %",
    "loss-unchanged": "a window that counts ends with the very loss it began with, although steps "
    "were taken",
    "no-finite-loss": "a window that counts gives no finite loss: not logged, or diverged",
    "not-as-asked": "a window that counts reports other ranks, accumulation or global batch than "
    "the case asks for",
    "mixed-settings": "runs under one name differ in their settings",
    "no-number": "a run ended ok, but its throughput is not a positive finite number; it does not "
    "count",
    "mixed-units": "the throughputs of a series, or of a case's runs, are in different units: "
    "samples/s here, tokens/s or GFLOP/s there",
    "printed-only": "the speed is what the program printed: no clock in the log to hold it against",
    "clock-and-print-differ": "what the program printed is more than "
    f"{100 * CROSS_CHECK:.0f} % off what the log's own clock says",
    "window-and-rest-differ": "the iterations behind the window of an external log, at least half "
    f"as many, are more than {100 * REST_DIFFERS:.0f} % slower or faster",
    "total-and-lines-differ": "the speed is the program's total, and more than "
    f"{100 * CROSS_CHECK:.0f} % off what all lines of the same log say",
    "shared-allocation": "runs that count were measured in turn inside one job "
    "(`repeats_per_job`): their spread knows nothing of other nodes and other days",
    "energy-in-doubt": "the energy of a run that counts is not that of all its devices and of the "
    "window alone, or rests on few samples of power; the note says which",
    "log-contradicts-itself": "figures of a run's own log cannot be true together; the run counts "
    "only if its record confirms the window",
    "log-and-record-differ": "a run's log and its record differ; the run counts only if it is "
    "known which one was changed",
    "short-window": f"a window on GPUs that counts took less than {SHORT_WINDOW_S:g} s: clocks "
    "and heat are not yet those of long training (`measure.min_seconds`)",
    "few-cores": f"a rank with a GPU had fewer than {FEW_CORES} cores: its GPU may have waited "
    "(`cpus_per_task` of the site profile)",
    "far-memory": "a rank ran on cores, or in memory, of another NUMA node than its GPU's "
    '(`--gpu-bind=closest`, or `bind = "gpu"`)',
    "allocator-retries": "in a window that counts the framework's allocator was out of memory, "
    "gave its cache back and asked again: the batch is nearly too large",
    "nccl-socket": "ranks on different nodes talked by NET/Socket, by NCCL's own lines, although "
    "an InfiniBand or RoCE port of the first rank's node is up",
    "nccl-net-in-node": "ranks of one node talked over the network, by NCCL's own lines: neither "
    "NVLink, PCI nor shared memory",
    "memory-grows": f"the peak of memory grows by more than {100 * _GROWTH:.0f} % and "
    f"{_GROWTH_MB} MiB within a window that counts",
    "does-not-fit": "no run counts, and one ran out of memory: the line through smaller batches "
    "shows how much the case needs",
    "recompiled": "in a window that counts torch.compile made another graph, which takes time (a "
    "longer `measure.warmup`, or data of one shape)",
    "graph-breaks": "torch.compile left parts of a model that counts to Python",
    "no-end-line": "the log of a run that counts has no end line; its record says that it ended ok",
    "duplicate-run": "more than one result for a run; only its first ok attempt counts",
}
"""Every flag there is, and when it is set."""


@dataclass(frozen=True)
class Flag:
    """One of :data:`FLAGS` by its name, and the sentence, with the figures, that goes with it.
    ``size`` is how far off its figure is, a signed fraction; None for a flag without one."""

    name: str
    note: str
    size: float | None = None


def of_sample(sample: Sample | None, unit: str, usual: float | None) -> list[Flag]:
    """Flags about the repeats as numbers, in ``unit``; ``usual`` is how far off the furthest run of
    the cases usually is."""
    if sample is None:
        return []
    found = []
    if sample.n < MIN_REPEATS:
        found.append(Flag("too-few-repeats", _coverage_note(sample)))
    if split := two_groups(sample.values, usual):
        found.append(Flag("bimodal", _groups_note(sample, split, unit)))
    for value, off in outliers(sample.values, usual):
        note = f"{value:.2f} {unit} is {100 * off:+.1f} % off the median of the others, but counted"
        found.append(Flag("outlier", note, off))
    return found


def _coverage_note(sample: Sample) -> str:
    wanted = f"{100 * TARGET_COVERAGE:.0f} % needs {MIN_REPEATS} runs or more"
    if sample.interval is None:
        return f"1 run counts, so there is no confidence interval; {wanted}"
    covered = 100 * sample.interval.coverage
    return f"{sample.n} runs count: the interval of the median covers {covered:.4g} %; {wanted}"


def _groups_note(sample: Sample, split: Split, unit: str) -> str:
    low, high = split.low_count, sample.n - split.low_count
    median = "in the larger one" if low != high else "between them, where no run is"
    return (
        f"the runs form two groups, {low} from {sample.minimum:.2f} to {split.low_end:.2f} and "
        f"{high} from {split.high_start:.2f} to {sample.maximum:.2f} {unit}, whose medians are "
        f"{100 * split.apart:.1f} % apart; the median is {median}"
    )


def both_units(units: Iterable[str]) -> str:
    """What to say of figures in several units."""
    text = "one is not divided by the other"
    if own_unit([*units]):
        return text
    return f"{text}; the sequence length (--seq-len) may give both"


def of_left_out(units: Sequence[str], left_out: Sequence[Rates]) -> list[Flag]:
    """Runs of one case that do not count because they have no throughput in ``units``."""
    if not left_out:
        return []
    runs = "1 run is" if len(left_out) == 1 else f"{len(left_out)} runs are"
    theirs = dict.fromkeys(unit for rates in left_out for unit in rates)
    why = both_units([*theirs, *units])
    note = f"{runs} in {' and '.join(theirs)} and left out, the others are in {units[0]}: {why}"
    return [Flag("mixed-units", note)]


def of_mixed_series(units: Mapping[str, str]) -> list[Flag]:
    """Whether the cases of a series, by their topologies, are in several units."""
    found: dict[str, list[str]] = {}
    for topology, unit in units.items():
        found.setdefault(unit, []).append(topology)
    if len(found) < 2:
        return []
    topologies = ", ".join(f"{', '.join(names)} in {unit}" for unit, names in found.items())
    return [Flag("mixed-units", f"{topologies}: {both_units(found)}")]


# --- timed windows

Test = Callable[[Any], Any]
_NO_STEP = "hold no optimizer step: no all-reduce of an update and no update is in their time"
_UNSTEADY = "are not steady (drift, or a jump inside the window)"


def _of_tests(windows: Sequence[Any], tests: Iterable[tuple[str, Test, str]]) -> list[Flag]:
    """A flag for each test that some window meets."""
    hits = [(name, sum(map(bool, map(test, windows))), text) for name, test, text in tests]
    n = len(windows)
    return [Flag(name, f"{count} of {n} windows {text}") for name, count, text in hits if count]


def of_windows(case: CaseFacts, windows: Sequence[Window]) -> list[Flag]:
    """Flags about the timed windows of the runs that count."""
    found = _of_tests(windows, _OF_WINDOWS)
    differing = sorted({text for window in windows for text in _contradictions(case, window)})
    return found + [Flag("not-as-asked", text) for text in differing]


def _no_loss(window: Window) -> bool:
    losses = (window.loss_first, window.loss_last)
    return not all(loss is not None and math.isfinite(loss) for loss in losses)


def _loss_stuck(window: Window) -> bool:
    stepped = window.loss_first is not None and window.optimizer_steps > 0
    return stepped and window.loss_first == window.loss_last


def _grows(window: Window) -> bool:
    return (window.memory_growth_mb or 0.0) > max(_GROWTH * (window.memory_mb or 0.0), _GROWTH_MB)


_OF_WINDOWS: Sequence[tuple[str, Test, str]] = (
    ("no-optimizer-step", lambda w: w.optimizer_steps == 0 and not w.skipped_steps, _NO_STEP),
    ("all-steps-skipped", lambda w: 0 < (w.skipped_steps or 0) >= w.optimizer_steps,
     "skipped every optimizer step: a skipped step is faster than a real one"),
    ("unsteady", lambda w: w.steady is False, _UNSTEADY),
    ("no-finite-loss", _no_loss, "give no finite loss, so nothing shows that they trained"),
    ("loss-unchanged", _loss_stuck, "end with the loss they began with: were the parameters "
     "updated?"),
    ("recompiled", lambda w: w.recompiles, "hold the time in which torch.compile made another "
     "graph"),
    ("graph-breaks", lambda w: w.graph_breaks, "are of models with graph breaks"),
    ("memory-grows", _grows, "need more and more memory: what keeps something of each iteration?"),
)  # fmt: skip


def _contradictions(case: CaseFacts, window: Window) -> Iterator[str]:
    """In what a window is not as its case is configured."""
    wanted = {name: getattr(case, name) for name in ("ranks", "accumulation", "global_batch")}
    if isinstance(case, Case) and case.launch:  # its ranks are those of supervisors
        wanted["ranks"] = case.processes
        if window.samples == window.iterations * case.global_batch:
            wanted["accumulation"] = 1  # an iteration of the hook's is an optimizer step
    for name, configured in wanted.items():
        reported = getattr(window, name)
        if reported != configured and None not in (reported, configured):
            what = name.replace("_", " ")
            yield f"a window reports {what} {reported}, the case asks for {configured}"


def of_external(windows: Sequence[ExternalWindow]) -> list[Flag]:
    """Flags about windows of other programs' logs."""
    return _of_tests(windows, _OF_EXTERNAL)


def _off(other: float | None, window: ExternalWindow, most: float) -> bool:
    """Whether another figure of a window is further from its speed than this fraction."""
    return other is not None and abs(other / window.speed - 1) > most


def _has_clock(window: ExternalWindow) -> bool:
    """Whether a time of its own stands behind a figure: stamps, or when the lines came."""
    return bool({"clock", "arrival"} & {window.basis, window.check_basis})


def _differ(window: ExternalWindow) -> bool:
    bases = {window.basis, window.check_basis}
    own = "total" in bases or bases == {"arrival", "clock"}  # of two clocks the better was taken
    # How late a busy machine brings a line is no share of the window.
    late = ("arrival" in bases) * _LATE_S / (window.elapsed_s or math.inf)
    return _has_clock(window) and not own and _off(window.check, window, CROSS_CHECK + late)


_OF_EXTERNAL: Sequence[tuple[str, Test, str]] = (
    ("no-optimizer-step", lambda w: w.optimizer_steps == 0, _NO_STEP),
    ("unsteady", lambda w: w.steady is False, _UNSTEADY),
    ("printed-only", lambda w: not _has_clock(w), "rest on printed figures alone"),
    ("clock-and-print-differ", _differ, "were printed otherwise than the clock says"),
    ("window-and-rest-differ", lambda w: _off(w.rest, w, REST_DIFFERS), "are followed by "
     "iterations of another speed"),
    ("total-and-lines-differ", lambda w: w.basis == "total" and _off(w.check, w, CROSS_CHECK),
     "are totals that the lines of the same log contradict"),
)  # fmt: skip


# --- ranks, GPUs and ways between them


def of_gpus(counted: Sequence[RunResult]) -> list[Flag]:
    """Flags about how the ranks of the runs that count were placed beside their GPUs, and whether
    these had time and memory enough."""
    on_gpus = [(result, rows) for result in counted if (rows := _gpu_ranks(result))]
    n, found = len(on_gpus), []
    lengths = [result.window.elapsed_s for result, _ in on_gpus if result.window is not None]
    short = [elapsed for elapsed in lengths if elapsed < SHORT_WINDOW_S]
    if short:
        note = f"{len(short)} of {n} windows are short, the shortest {min(short):.2f} s"
        found.append(Flag("short-window", note))
    found += _of_cores([rows for _, rows in on_gpus])
    far = [texts for _, rows in on_gpus if (texts := [*filter(None, map(_far, rows))])]
    if far:
        note = f"{len(far)} of {n} runs: {'; '.join(far[0][:MOST_SAID])}"
        found.append(Flag("far-memory", note))
    retried = [r.gpu.alloc_retries for r in counted if r.gpu is not None and r.gpu.alloc_retries]
    if retried:
        note = f"in {len(retried)} runs the allocator asked again, up to {max(retried)} times"
        found.append(Flag("allocator-retries", note))
    return found


def of_transport(counted: Sequence[RunResult]) -> list[Flag]:
    """Flags about which way NCCL's ranks talked in the runs that count, where logs tell it."""
    found = []
    ports = [port for r in counted if "NET/Socket" in ways(r.facts, "between")
             for port in ways(r.facts, "ports")[:1]]  # fmt: skip
    if ports:
        note = f"{len(ports)} of {len(counted)} runs talked by NET/Socket between nodes, beside the"
        found.append(Flag("nccl-socket", f"{note} port {ports[0]}: see NCCL_IB_DISABLE, NCCL_NET "
                          "and NCCL's line NET/IB"))  # fmt: skip
    odd = [way for r in counted for way in ways(r.facts, "within") if way.startswith("NET/")]
    if odd:
        note = f"ranks of one node talked by {', '.join(dict.fromkeys(odd))}"
        found.append(Flag("nccl-net-in-node", f"{note}: see NCCL_P2P_DISABLE, NCCL_SHM_DISABLE"))
    return found


Rank = Mapping[str, object]
"""A ``rank`` line."""


def _gpu_ranks(result: RunResult) -> list[Rank]:
    """The ranks that computed on a GPU."""
    rows = result.facts.get("ranks") or []
    return [row for row in rows if isinstance(row, Mapping) and row.get("device_uuid")]


def _of_cores(runs: Sequence[Sequence[Rank]]) -> list[Flag]:
    fewest = [cores for rows in runs if (cores := fewest_cores(rows)) is not None]
    few = sum(cores < FEW_CORES for cores in fewest)
    if not few:
        return []
    note = f"{few} of {len(runs)} runs had ranks of few cores, at least {min(fewest):.3g} for a GPU"
    return [Flag("few-cores", note)]


def fewest_cores(rows: Sequence[Rank]) -> float | None:
    """The fewest cores that a rank had; those that several ranks of a host share are divided."""
    hosts: dict[str, list[set[int]]] = {}
    for row in rows:
        if cpus := _numbers(row.get("cpus")):
            hosts.setdefault(str(row.get("host")), []).append(cpus)
    shares = (min(*map(len, each), len(set().union(*each)) / len(each)) for each in hosts.values())
    return min(shares, default=None)


def _far(row: Rank) -> str:
    """Of a rank on another NUMA node than its GPU: where it is, and where that is."""
    node = row.get("gpu_numa")
    for key, text in (("cpus_numa", "runs on cores of"), ("memory_numa", "has memory of")):
        nodes = _numbers(row.get(key))
        if isinstance(node, int) and nodes and node not in nodes:
            return f"rank {row.get('rank')} {text} node {row.get(key)}, its GPU is at node {node}"
    return ""


def _numbers(text: object) -> set[int]:
    """CPUs or nodes as a log lists them, ``0-15,64-79``; empty for what is no such list."""
    found: set[int] = set()
    for part in str(text).split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > 15:
            return set()
        low, high = int(first), int(last or first)
        if high >= _MOST_CPUS:
            return set()
        found.update(range(low, high + 1))
    return found


# --- which results were taken


def of_results(results: Sequence[RunResult], counted_out: Sequence[str]) -> list[Flag]:
    """Flags about which results were taken: ``counted_out`` are ok runs without a number."""
    found = []
    names = Counter(result.run.id for result in results)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        note = f"more than one result for {', '.join(twice)}: only the first ok attempt counts"
        found.append(Flag("duplicate-run", note))
    if counted_out:
        note = f"ended ok without a positive finite throughput: {', '.join(counted_out)}"
        found.append(Flag("no-number", note))
    for result in results:
        found += _of_contradictions(result)
    without = [
        result.run.id
        for result in results
        if result.status is Status.OK and result.source == "record" and result.window is not None
    ]
    if without:
        note = f"the log has no end line, its record says that it ended ok: {', '.join(without)}"
        found.append(Flag("no-end-line", note))
    differing = _differing([r.run.case for r in results if not r.run.case.sought])
    if differing:
        note = f"the runs differ in {', '.join(differing)}: they are not repeats of one case"
        found.append(Flag("mixed-settings", note))
    return found


_CONTRADICTIONS = {"log": "log-contradicts-itself", "record": "log-and-record-differ"}


def _of_contradictions(result: RunResult) -> Iterator[Flag]:
    """What cannot be true of a run: a sentence for each kind."""
    for between, name in _CONTRADICTIONS.items():
        texts = [each.text for each in result.contradictions if each.between == between]
        if texts:
            more = f"; and {len(texts) - MOST_SAID} more" if len(texts) > MOST_SAID else ""
            yield Flag(name, f"{result.run.id}: {'; '.join(texts[:MOST_SAID])}{more}")


def _differing(cases: Sequence[CaseFacts]) -> list[str]:
    """The settings, by name, in which cases of one id differ."""
    if len({*map(repr, cases)}) < 2:
        return []
    names = vars(cases[0])
    return [name for name in names if len({repr(getattr(case, name, None)) for case in cases}) > 1]


def of_launches(results: Sequence[RunResult]) -> list[Flag]:
    """Whether the runs that count were measured in turn, in fewer jobs than there are runs."""
    jobs = [job for result in results if (job := shared_job(result.launch)) is not None]
    if len(jobs) == len(set(jobs)):
        return []
    runs = f"{len(jobs)} of {len(results)} runs were measured in turn"
    note = f"{runs} inside {len(set(jobs))} job{'s' * (len(set(jobs)) > 1)}"
    return [Flag("shared-allocation", f"{note}: their spread is that of one allocation")]


def of_efficiency(efficiency: float | None, interval: Interval | None, growth: float) -> list[Flag]:
    """Super-linear or not; ``growth`` is devices / base devices.

    Fewer or as many devices as the base may well be more efficient; only more devices may not.
    """
    if efficiency is None or growth <= 1:
        return []
    low, text = SUPER_LINEAR_WITHOUT_INTERVAL, "no interval"
    if interval is not None:
        low, text = 1.0, f"all of [{interval.low:.3f}, {interval.high:.3f}] above 1"
    if (efficiency if interval is None else interval.low) <= low:
        return []
    advice = "look for windows without optimizer steps, a slow base, or settings that differ"
    note = f"efficiency {efficiency:.3f}, {text}; {advice}"
    return [Flag("super-linear", note, efficiency - 1)]
