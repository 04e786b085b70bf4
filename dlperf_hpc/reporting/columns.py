"""The columns of ``speedup.csv`` and ``runs.csv``: name, unit, meaning, and where the value is.

The tables, the JSON report and ``docs/csv.md`` all come from these two lists. A column once here
keeps its name and meaning; new ones go to the end of their group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.model.case import CaseFacts
from dlperf_hpc.model.result import (
    SAMPLES_PER_S,
    TOKENS_PER_S,
    ExternalWindow,
    RunResult,
    Window,
    own_unit,
)
from dlperf_hpc.model.statistics import Interval, Sample
from dlperf_hpc.records import nccl
from dlperf_hpc.reporting.table import Column, PartOf, part

Row = TypeVar("Row")
Part = TypeVar("Part")


def _case_columns(case: Callable[[Row], CaseFacts]) -> tuple[Column[Row], ...]:
    """What a case is: the same columns, first in both files."""
    return (
        Column("framework", "text", "", "back end that trained", lambda r: case(r).framework),
        Column("model", "text", "", "workload", lambda r: case(r).model),
        Column("precision", "text", "", "number format asked for", lambda r: case(r).precision),
        Column("batch_size", "integer", "samples", "batch of one device in one iteration",
               lambda r: case(r).batch_size),
        Column("seq_len", "integer", "tokens", "length of one sequence",
               lambda r: case(r).seq_len or None),
        Column("tags", "text", "", "options that tell the case from its default variant, "
               "joined by '-'", lambda r: "-".join(case(r).tags)),
        Column("topology", "text", "", "<nodes>n<devices per node>g",
               lambda r: str(case(r).topology)),
        Column("nodes", "integer", "", "nodes", lambda r: case(r).topology.nodes),
        Column("gpus_per_node", "integer", "", "devices per node (CPU runs: ranks)",
               lambda r: case(r).topology.gpus_per_node),
        Column("devices", "integer", "", "devices over all nodes",
               lambda r: case(r).topology.devices),
        Column("ranks", "integer", "", "processes over all nodes", lambda r: case(r).ranks),
    )  # fmt: skip


_RATE, _TOKENS = SAMPLES_PER_S, TOKENS_PER_S


def _sample(of: Callable[[Sample], Any], unit: str = "") -> Callable[[CaseSummary], Any]:
    """What the runs that count say in ``unit``; without one, in that of the speedup."""
    sample: PartOf[Sample, CaseSummary] = part(lambda s: s.samples.get(unit or s.unit))
    return sample(of)


def _base(of: Callable[[Sample], Any], unit: str) -> Callable[[CaseSummary], Any]:
    sample: PartOf[Sample, CaseSummary] = part(lambda s: s.base_samples.get(unit))
    return sample(of)


# what the runs that count say in a unit that is neither samples/s nor tokens/s
_own: PartOf[Sample, CaseSummary] = part(lambda s: s.samples.get(own_unit(s.samples)))
_base_own: PartOf[Sample, CaseSummary] = part(
    lambda s: s.base_samples.get(own_unit(s.base_samples))
)


def _end(interval: Interval | None, name: str) -> float | None:
    return None if interval is None else getattr(interval, name)


def _low(sample: Sample) -> float | None:
    return _end(sample.interval, "low")


def _high(sample: Sample) -> float | None:
    return _end(sample.interval, "high")


_RATES: tuple[Column[CaseSummary], ...] = (
    Column("samples_per_s", "number", _RATE, "median of the runs that count, over all devices",
           lambda s: s.samples_per_s),
    Column("samples_per_s_low", "number", _RATE, "lower end of the median's confidence interval",
           _sample(_low, _RATE)),
    Column("samples_per_s_high", "number", _RATE, "upper end of the median's confidence interval",
           _sample(_high, _RATE)),
    Column("ci_coverage", "number", "fraction", "true coverage of that interval; empty for 1 run",
           _sample(lambda x: _end(x.interval, "coverage"))),
    Column("samples_per_s_mean", "number", _RATE, "arithmetic mean, for comparison with DLPerf's "
           "average_speed; nothing here is computed from it", _sample(lambda x: x.mean, _RATE)),
    Column("samples_per_s_min", "number", _RATE, "slowest run that counts",
           _sample(lambda x: x.minimum, _RATE)),
    Column("samples_per_s_max", "number", _RATE, "fastest run that counts",
           _sample(lambda x: x.maximum, _RATE)),
    Column("spread", "number", "fraction", "(max - min) / median", _sample(lambda x: x.spread)),
    Column("samples_per_s_per_device", "number", _RATE, "median / devices",
           lambda s: s.samples_per_s_per_device),
    Column("tokens_per_s", "number", _TOKENS, "median of the runs that count, over all devices: "
           "samples_per_s x seq_len, so that padding counts, or where the length is not known as "
           "the program prints it", lambda s: s.median(_TOKENS)),
    Column("tokens_per_s_low", "number", _TOKENS, "lower end of the median's confidence interval",
           _sample(_low, _TOKENS)),
    Column("tokens_per_s_high", "number", _TOKENS, "upper end of the median's confidence interval",
           _sample(_high, _TOKENS)),
    Column("tokens_per_s_min", "number", _TOKENS, "slowest run that counts",
           _sample(lambda x: x.minimum, _TOKENS)),
    Column("tokens_per_s_max", "number", _TOKENS, "fastest run that counts",
           _sample(lambda x: x.maximum, _TOKENS)),
    Column("tokens_per_s_per_device", "number", _TOKENS, "median / devices",
           lambda s: s.per_device(_TOKENS)),
    Column("figure", "number", "figure_unit", "median of the runs that count, over all devices, of "
           "a program whose figure is neither in samples/s nor in tokens/s",
           _own(lambda x: x.median)),
    Column("figure_unit", "text", "", "unit of that figure: a rate, as GFLOP/s",
           lambda s: own_unit(s.samples)),
    Column("figure_low", "number", "figure_unit", "lower end of the median's confidence interval",
           _own(_low)),
    Column("figure_high", "number", "figure_unit", "upper end of the median's confidence interval",
           _own(_high)),
    Column("figure_min", "number", "figure_unit", "slowest run that counts",
           _own(lambda x: x.minimum)),
    Column("figure_max", "number", "figure_unit", "fastest run that counts",
           _own(lambda x: x.maximum)),
)  # fmt: skip

_SPEEDUPS: tuple[Column[CaseSummary], ...] = (
    Column("base", "text", "", "topology of the same series that speedup refers to",
           lambda s: None if s.base is None else str(s.base)),
    Column("base_samples_per_s", "number", _RATE, "median of the base, over all its devices",
           _base(lambda x: x.median, _RATE)),
    Column("base_low", "number", _RATE, "lower end of the base's confidence interval",
           _base(_low, _RATE)),
    Column("base_high", "number", _RATE, "upper end of the base's confidence interval",
           _base(_high, _RATE)),
    Column("speedup", "number", "ratio", "samples_per_s / base_samples_per_s, or where speedup_of "
           "says so the same of tokens_per_s or figure", lambda s: s.speedup),
    Column("speedup_low", "number", "ratio", "samples_per_s_low / base_high, or the same of "
           "tokens_per_s or figure; empty for the base",
           lambda s: _end(s.speedup_interval, "low")),
    Column("speedup_high", "number", "ratio", "samples_per_s_high / base_low, or the same of "
           "tokens_per_s or figure; empty for the base",
           lambda s: _end(s.speedup_interval, "high")),
    Column("speedup_coverage", "number", "fraction", "the speedup's interval covers at least this: "
           "the product of the two coverages", lambda s: _end(s.speedup_interval, "coverage")),
    Column("efficiency", "number", "ratio", "speedup / (devices / devices of the base); 1 is "
           "linear", lambda s: s.efficiency),
    Column("efficiency_low", "number", "ratio", "speedup_low / (devices / devices of the base)",
           lambda s: _end(s.efficiency_interval, "low")),
    Column("efficiency_high", "number", "ratio", "speedup_high / (devices / devices of the base)",
           lambda s: _end(s.efficiency_interval, "high")),
    Column("speedup_missing", "text", "", "why there is no speedup", lambda s: s.speedup_missing),
    Column("speedup_of", "text", "", "throughput that speedup, efficiency, spread and ci_coverage "
           "are of: samples/s, or tokens/s or figure_unit where not all cases of the series have "
           "samples/s",
           lambda s: s.unit if s.samples else ""),
    Column("base_tokens_per_s", "number", _TOKENS, "median of the base, over all its devices",
           _base(lambda x: x.median, _TOKENS)),
    Column("base_tokens_per_s_low", "number", _TOKENS, "lower end of the base's confidence "
           "interval", _base(_low, _TOKENS)),
    Column("base_tokens_per_s_high", "number", _TOKENS, "upper end of the base's confidence "
           "interval", _base(_high, _TOKENS)),
    Column("base_figure", "number", "figure_unit", "median of the base, over all its devices",
           _base_own(lambda x: x.median)),
    Column("base_figure_low", "number", "figure_unit", "lower end of the base's confidence "
           "interval", _base_own(_low)),
    Column("base_figure_high", "number", "figure_unit", "upper end of the base's confidence "
           "interval", _base_own(_high)),
)  # fmt: skip

CASE_COLUMNS: tuple[Column[CaseSummary], ...] = (
    Column("series", "text", "", "the case without its topology: one speedup curve",
           lambda s: s.case.series),
    *_case_columns(lambda s: s.case),
    Column("accumulation", "integer", "iterations", "per optimizer step: as the windows report, "
           "else as asked", lambda s: s.accumulation),
    Column("global_batch", "integer", "samples", "per optimizer step over all devices: as the "
           "windows report, else as asked", lambda s: s.global_batch),
    Column("scaling", "text", "", "weak: global batch grows with the devices; strong: it is fixed; "
           "mixed: neither; empty for a series with one device count", lambda s: s.scaling),
    Column("runs", "integer", "", "runs known of, whatever became of them", lambda s: s.runs),
    Column("runs_ok", "integer", "", "runs that count: ended ok, with a number", lambda s: s.ok),
    Column("statuses", "text", "", "how many runs are in each status", lambda s: s.status_text),
    *_RATES,
    *_SPEEDUPS,
    Column("optimizer_steps", "integer", "", "fewest in any window that counts",
           lambda s: s.optimizer_steps),
    Column("skipped_steps", "integer", "", "most optimizer steps skipped in any window that counts",
           lambda s: s.skipped_steps),
    Column("iteration_ms", "number", "ms", "time of the window / its iterations, median of the "
           "runs that count", lambda s: s.iteration_ms),
    Column("step_ms_p50", "number", "ms", "the runs' own medians over the iterations of the "
           "slowest rank, median of the runs that count; not of other programs' logs",
           lambda s: s.step_ms_p50),
    Column("rank_spread_max", "number", "fraction", "largest (slowest - fastest) / slowest of the "
           "ranks' times in any window that counts", lambda s: s.rank_spread),
    Column("memory_mb_max", "number", "MB", "largest peak memory of a device in any window that "
           "counts", lambda s: s.memory_mb),
    Column("exposed_comm", "number", "fraction", "share of an optimizer step that only gradient "
           "synchronisation takes, not hidden behind computation; median of the runs",
           lambda s: s.exposed_comm),
    Column("attention", "text", "", "attention kernels of PyTorch that were seen in the runs that "
           "count, joined by +", lambda s: s.attention),
    Column("checkpoint_save_s", "number", "s", "median time to save a checkpoint, over the runs "
           "that measured it", lambda s: s.checkpoint_save_s),
    Column("checkpoint_load_s", "number", "s", "median time to load that checkpoint",
           lambda s: s.checkpoint_load_s),
    Column("checkpoint_mb_per_rank", "number", "MB", "median size of the checkpoint's files / "
           "ranks, 1 MB = 10^6 bytes", lambda s: s.checkpoint_mb_per_rank),
    Column("checkpoint_save_mb_s", "number", "MB/s", "median rate of saving, over all ranks",
           lambda s: s.checkpoint_save_mb_s),
    Column("checkpoint_load_mb_s", "number", "MB/s", "median rate of loading, over all ranks",
           lambda s: s.checkpoint_load_mb_s),
    Column("gpu_util", "number", "%", "time with a kernel running, mean over devices and runs "
           "(NVML)", lambda s: s.gpu_util),
    Column("gpu_memory_mb_max", "number", "MiB", "most memory in use on any device of any run "
           "(NVML)", lambda s: s.gpu_memory_mb),
    Column("gpu_joules_per_sample", "number", "J", "energy of all devices / samples, median of the "
           "runs", lambda s: s.joules_per_sample),
    Column("tflops_per_device", "number", "TFLOPS", "model FLOPs of the median, forward and "
           "backward, padding included, per device; empty for a model or length that is not known",
           lambda s: s.tflops_per_device),
    Column("mfu", "number", "fraction", "tflops_per_device / dense peak of the accelerator in that "
           "precision; empty for an unknown accelerator and for CPUs", lambda s: s.mfu),
    Column("nccl_transport", "text", "", "which way NCCL's ranks talked, by its own lines, in the "
           "runs that count; where these differ, all, separated by ' | '",
           lambda s: " | ".join(s.transports)),
    Column("flags", "text", "", "what is odd, as short names separated by spaces",
           lambda s: " ".join(s.flags)),
    Column("notes", "text", "", "what the flags say, in sentences with figures, separated by ' | '",
           lambda s: " | ".join(s.notes)),
    Column("sweep", "text", "", "sweep that measured it, where several of the sweeps that the "
           "report is of measured the same case", lambda s: s.sweep),
)  # fmt: skip
"""One row per case: ``speedup.csv``."""


def _of_counted(of: Callable[[RunResult], Part | None]) -> PartOf[Part, RunResult]:
    """Of a run that counts: a cut run leaves no number behind."""
    return part(lambda run: of(run) if run.rates else None)


_window = _of_counted(lambda run: run.window)
_external = _of_counted(lambda run: run.external)
_either: PartOf[Window | ExternalWindow, RunResult] = _of_counted(
    lambda run: run.window or run.external
)
_checkpoint = _of_counted(lambda run: run.checkpoint)
_gpu = _of_counted(lambda run: run.gpu)


def _check(unit: str) -> Callable[[RunResult], Any]:
    return _external(lambda w: w.check if w.speed_unit == unit else None)


_EXTERNAL: tuple[Column[RunResult], ...] = (
    Column("format", "text", "", "format of another program's log", _external(lambda w: w.format)),
    Column("evidence", "text", "", "what the reader of that format rests on: real logs, quoted "
           "lines, source only; told in TOML: a user's table", _external(lambda w: w.evidence)),
    Column("rule", "text", "", "window rule by which the figure was taken from the log",
           _external(lambda w: w.rule)),
    Column("basis", "text", "", "clock: time stamps; arrival: when a user's program printed its "
           "lines; timer: the Timer or hook in it; printed: the program's own figures; total: its "
           "one figure for the whole run",
           _external(lambda w: w.basis)),
    Column("unit", "text", "", "of the log's own figures", _external(lambda w: w.unit)),
    Column("factor", "number", "", "samples per iteration for the clock, else samples/s (tokens/s "
           "or figure_unit in a row that has no samples/s) over all devices per printed unit",
           _external(lambda w: w.factor)),
    Column("first_iteration", "integer", "", "the window begins after it",
           _external(lambda w: w.first)),
    Column("last_iteration", "integer", "", "the window ends with it", _external(lambda w: w.last)),
    Column("check_samples_per_s", "number", _RATE, "the same window on the other basis",
           _check(_RATE)),
    Column("check_tokens_per_s", "number", _TOKENS, "the same, of a row that has no samples/s",
           _check(_TOKENS)),
)  # fmt: skip


RUN_COLUMNS: tuple[Column[RunResult], ...] = (
    Column("run", "text", "", "identity of the run in its sweep", lambda r: r.run.id),
    *_case_columns(lambda r: r.run.case),
    Column("repeat", "integer", "", "which repeat of its case, from 1", lambda r: r.run.repeat),
    Column("attempt", "integer", "", "which attempt at the run this is, from 1",
           lambda r: r.attempt),
    Column("status", "text", "", "what became of it; only ok counts", lambda r: r.status.value),
    Column("reason", "text", "", "why it is not ok", lambda r: r.reason),
    Column("samples_per_s", "number", _RATE, "samples / elapsed_s, over all devices",
           lambda r: r.samples_per_s),
    Column("tokens_per_s", "number", _TOKENS, "over all devices: samples_per_s x seq_len, so that "
           "padding counts, or where the length is not known as the program prints it",
           lambda r: r.rates.get(_TOKENS)),
    Column("tokens_per_s_per_device", "number", _TOKENS, "tokens_per_s / devices",
           lambda r: None if _TOKENS not in r.rates
           else r.rates[_TOKENS] / r.run.case.topology.devices),
    Column("figure", "number", "figure_unit", "over all devices, of a program whose figure is "
           "neither in samples/s nor in tokens/s: samples_per_s is empty then",
           lambda r: r.rates.get(own_unit(r.rates))),
    Column("figure_unit", "text", "", "unit of that figure: a rate, as GFLOP/s",
           lambda r: own_unit(r.rates)),
    Column("warmup", "integer", "iterations", "untimed, before the window",
           _window(lambda w: w.warmup)),
    Column("iterations", "integer", "iterations", "timed: the window",
           _window(lambda w: w.iterations)),
    Column("optimizer_steps", "integer", "", "in the window", _either(lambda w: w.optimizer_steps)),
    Column("skipped_steps", "integer", "", "optimizer steps of the window that were skipped",
           _window(lambda w: w.skipped_steps)),
    Column("accumulation", "integer", "iterations", "per optimizer step",
           _window(lambda w: w.accumulation)),
    Column("global_batch", "integer", "samples", "per optimizer step over all devices",
           _window(lambda w: w.global_batch)),
    Column("samples", "integer", "samples", "through forward and backward in the window, over all "
           "ranks", _window(lambda w: w.samples)),
    Column("elapsed_s", "number", "s", "time of the window on the slowest rank",
           _either(lambda w: w.elapsed_s)),
    Column("rank_spread", "number", "fraction", "(slowest - fastest) / slowest of the ranks' times",
           _window(lambda w: w.rank_spread)),
    Column("step_ms_p5", "number", "ms", "5th percentile over iterations, slowest rank of each",
           _window(lambda w: w.step_ms_p5)),
    Column("step_ms_p50", "number", "ms", "median over iterations, slowest rank of each",
           _window(lambda w: w.step_ms_p50)),
    Column("step_ms_p95", "number", "ms", "95th percentile over iterations, slowest rank of each",
           _window(lambda w: w.step_ms_p95)),
    Column("step_ms_p99", "number", "ms", "99th percentile over iterations, slowest rank of each",
           _window(lambda w: w.step_ms_p99)),
    Column("data_wait_s", "number", "s", "time of the window spent waiting for data",
           _window(lambda w: w.data_wait_s)),
    Column("memory_mb", "number", "MB", "peak memory of a device", _either(lambda w: w.memory_mb)),
    Column("loss_first", "number", "", "loss as the window begins",
           _either(lambda w: w.loss_first)),
    Column("loss_last", "number", "", "loss as the window ends", _either(lambda w: w.loss_last)),
    Column("drift", "number", "fraction", "trend of the step time over the window, of its median",
           _either(lambda w: w.drift)),
    Column("steady", "boolean", "", "whether the window passed the steadiness test; empty: not "
           "tested", _either(lambda w: w.steady)),
    Column("exposed_comm", "number", "fraction", "share of an optimizer step that only gradient "
           "synchronisation takes, not hidden behind computation; measured after the window; a "
           "little below 0 is noise",
           _window(lambda w: w.exposed_comm)),
    Column("attention", "text", "", "PyTorch's attention kernels that were seen in an iteration "
           "of the warm-up: flash, efficient, cudnn, math, joined by +; empty: none was seen",
           _window(lambda w: w.attention)),
    Column("graphs", "integer", "", "graphs that torch.compile made; empty in mode eager",
           _window(lambda w: w.graphs)),
    Column("graph_breaks", "integer", "", "graph breaks that torch.compile met",
           _window(lambda w: w.graph_breaks)),
    Column("recompiles", "integer", "", "of these graphs, those made inside the window",
           _window(lambda w: w.recompiles)),
    Column("checkpoint_save_s", "number", "s", "time to save a checkpoint after the window, files "
           "synced to disk, on the slowest rank; empty where none was measured",
           _checkpoint(lambda c: c.save_s)),
    Column("checkpoint_load_s", "number", "s", "time to load that checkpoint, on the slowest rank",
           _checkpoint(lambda c: c.load_s)),
    Column("checkpoint_mb_per_rank", "number", "MB", "size of the checkpoint's files / ranks, "
           "1 MB = 10^6 bytes", _checkpoint(lambda c: c.mb_per_rank)),
    Column("checkpoint_save_mb_s", "number", "MB/s", "size of the checkpoint's files / "
           "checkpoint_save_s", _checkpoint(lambda c: c.save_mb_s)),
    Column("checkpoint_load_mb_s", "number", "MB/s", "size of the checkpoint's files / "
           "checkpoint_load_s", _checkpoint(lambda c: c.load_mb_s)),
    *_EXTERNAL,
    Column("gpu_util", "number", "%", "time with a kernel running, mean over devices (NVML)",
           _gpu(lambda g: g.util)),
    Column("gpu_memory_mb", "number", "MiB", "most memory in use on any device, by whomever (NVML)"
           "; memory_mb is the allocator's peak", _gpu(lambda g: g.memory_mb)),
    Column("gpu_sm_mhz", "number", "MHz", "SM clock, mean over devices", _gpu(lambda g: g.sm_mhz)),
    Column("gpu_watts", "number", "W", "power of a device, mean", _gpu(lambda g: g.watts)),
    Column("gpu_joules", "number", "J", "energy of all devices in the window",
           _gpu(lambda g: g.joules)),
    Column("gpu_celsius", "number", "deg C", "hottest device", _gpu(lambda g: g.celsius)),
    Column("gpu_throttle", "integer", "bits", "every throttle reason NVML gave; 0 for none",
           _gpu(lambda g: g.throttle)),
    Column("gpu_joules_by", "text", "", "how the energy is known: counter (the devices' own), or "
           "power (added up from samples)", _gpu(lambda g: g.joules_by)),
    Column("gpu_devices", "integer", "", "devices that told their energy",
           _gpu(lambda g: g.devices)),
    Column("gpu_covered", "number", "fraction", "share of the time watched that samples stand for, "
           "on the device with the least", _gpu(lambda g: g.covered)),
    Column("gpu_gap_s", "number", "s", "longest time without a sample on any device",
           _gpu(lambda g: g.gap_s)),
    Column("gpu_energy_doubt", "text", "", "why the energy may not be that of the window and of "
           "all devices; empty for no reason",
           lambda r: "; ".join(energy_doubts(r)) if r.rates else ""),
    Column("gpu_alloc_retries", "integer", "", "how often the framework's allocator was out of "
           "memory in the window, gave its cache back and asked again: each waits for the device",
           _gpu(lambda g: g.alloc_retries)),
    Column("gpu_reserved_mb", "number", "MiB", "most memory that the framework's allocator held on "
           "any device, in use or not", _gpu(lambda g: g.reserved_mb)),
    Column("nccl_transport", "text", "", "which way NCCL's ranks talked, by its own lines "
           "(NCCL_DEBUG=INFO); empty where none told it",
           lambda r: nccl.in_words(r.facts) if r.rates else ""),
    Column("nccl_channels", "integer", "", "channels that these lines number",
           lambda r: nccl.channels(r.facts) if r.rates else None),
    Column("source", "text", "", "what the row rests on: log, record, scheduler or manifest",
           lambda r: r.source),
    Column("launch", "text", "", "`<job>_<index>.<restarts>`, and `.<repeat>` where a job measures "
           "several repeats: those share an allocation", lambda r: r.launch),
    Column("started", "text", "UTC", "start of the attempt", lambda r: r.started),
    Column("ended", "text", "UTC", "end of the attempt", lambda r: r.ended),
    Column("log", "text", "", "path of the log", lambda r: r.log),
    Column("warnings", "text", "", "what the log warns of, separated by ' | '",
           lambda r: " | ".join(r.warnings)),
    Column("sweep", "text", "", "sweep that measured it, where several of the sweeps that the "
           "report is of measured the same case", lambda r: r.sweep),
)  # fmt: skip
"""One row per run, whatever became of it: ``runs.csv``."""
