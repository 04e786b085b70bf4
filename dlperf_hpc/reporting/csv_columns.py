"""The columns of ``speedup.csv`` and ``runs.csv``: name, unit, meaning, and where the value is.

The tables, the JSON report and ``docs/csv.md`` all come from these two lists. A column once here
keeps its name and meaning; new ones go to the end of their group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S, RunResult, own_unit
from dlperf_hpc.records import nccl
from dlperf_hpc.reporting.table import Column, Kind, Row, Value

_RATE, _TOKENS = SAMPLES_PER_S, TOKENS_PER_S
_OWN = "figure_unit"


def _text(name: str, meaning: str, value: Value[Row] = "", unit: str = "") -> Column[Row]:
    return Column(name, "text", unit, meaning, value or name)


def _of_kind(kind: Kind) -> Callable[..., Column[Any]]:
    """A function that makes columns; without a value the row has it under the column's name."""

    def column(name: str, unit: str, meaning: str, value: Value[Any] = "") -> Column[Any]:
        return Column(name, kind, unit, meaning, value or name)

    return column


_integer, _number, _boolean = _of_kind("integer"), _of_kind("number"), _of_kind("boolean")


def _case_columns(case: str) -> tuple[Column[Any], ...]:
    """What a case is: the same columns, first in both files; ``case`` is where a row has it."""
    of = value_at(case)
    return (
        _text("framework", "back end that trained", f"{case}.framework"),
        _text("model", "workload", f"{case}.model"),
        _text("precision", "number format asked for", f"{case}.precision"),
        _integer("batch_size", "samples", "batch of one device in one iteration",
                 lambda r: of(r).batch_size or None),
        _integer("seq_len", "tokens", "length of one sequence", lambda r: of(r).seq_len or None),
        _text("tags", "options that tell the case from its default variant, joined by '-'",
              lambda r: "-".join(of(r).tags)),
        _text("topology", "<nodes>n<devices per node>g", lambda r: str(of(r).topology)),
        _integer("nodes", "", "nodes", f"{case}.topology.nodes"),
        _integer("gpus_per_node", "", "devices per node (CPU runs: ranks)",
                 f"{case}.topology.gpus_per_node"),
        _integer("devices", "", "devices over all nodes", f"{case}.topology.devices"),
        _integer("ranks", "", "processes over all nodes", f"{case}.ranks"),
    )  # fmt: skip


def _said(samples: str, unit: str = "") -> Callable[[str], Callable[[CaseSummary], Any]]:
    """For columns of what the runs that count say in ``unit``; without one, in a unit that is
    neither samples/s nor tokens/s. ``samples`` is where a summary has it."""

    def figure(path: str) -> Callable[[CaseSummary], Any]:
        value = value_at(path)

        def of(summary: CaseSummary) -> Any:
            known = getattr(summary, samples)
            return value(known.get(unit or own_unit(known)))

        return of

    return figure


_rate, _tokens, _own = _said("samples", _RATE), _said("samples", _TOKENS), _said("samples")
_base_rate, _base_tokens = _said("base_samples", _RATE), _said("base_samples", _TOKENS)
_base_own = _said("base_samples")
_LOW, _HIGH = "interval.low", "interval.high"
_LOWER = "lower end of the median's confidence interval"
_UPPER = "upper end of the median's confidence interval"
_BASE = "median of the base, over all its devices"
_BASE_LOWER = "lower end of the base's confidence interval"
_BASE_UPPER = "upper end of the base's confidence interval"
_SLOWEST, _FASTEST = "slowest run that counts", "fastest run that counts"

_RATES: tuple[Column[CaseSummary], ...] = (
    _number("samples_per_s", _RATE, "median of the runs that count, over all devices"),
    _number("samples_per_s_low", _RATE, _LOWER, _rate(_LOW)),
    _number("samples_per_s_high", _RATE, _UPPER, _rate(_HIGH)),
    _number("ci_coverage", "fraction", "true coverage of that interval; empty for 1 run",
            "sample.interval.coverage"),
    _number("samples_per_s_mean", _RATE, "arithmetic mean, only for comparison with DLPerf's "
            "average_speed", _rate("mean")),
    _number("samples_per_s_min", _RATE, _SLOWEST, _rate("minimum")),
    _number("samples_per_s_max", _RATE, _FASTEST, _rate("maximum")),
    _number("spread", "fraction", "(max - min) / median", "sample.spread"),
    _number("samples_per_s_per_device", _RATE, "median / devices",
            lambda s: s.per_device(_RATE)),
    _number("tokens_per_s", _TOKENS, "median of the runs that count, over all devices: "
            "samples_per_s x seq_len (padding counts), or for an unknown length as the program "
            "prints it", _tokens("median")),
    _number("tokens_per_s_low", _TOKENS, _LOWER, _tokens(_LOW)),
    _number("tokens_per_s_high", _TOKENS, _UPPER, _tokens(_HIGH)),
    _number("tokens_per_s_min", _TOKENS, _SLOWEST, _tokens("minimum")),
    _number("tokens_per_s_max", _TOKENS, _FASTEST, _tokens("maximum")),
    _number("tokens_per_s_per_device", _TOKENS, "median / devices",
            lambda s: s.per_device(_TOKENS)),
    _number("figure", _OWN, "median of the runs that count, over all devices, in a unit of the "
            "program's own", _own("median")),
    _text("figure_unit", "unit of that figure: a rate, as GFLOP/s", lambda s: own_unit(s.samples)),
    _number("figure_low", _OWN, _LOWER, _own(_LOW)),
    _number("figure_high", _OWN, _UPPER, _own(_HIGH)),
    _number("figure_min", _OWN, _SLOWEST, _own("minimum")),
    _number("figure_max", _OWN, _FASTEST, _own("maximum")),
)  # fmt: skip

_SPEEDUPS: tuple[Column[CaseSummary], ...] = (
    _text("base", "topology of the same series that speedup refers to",
          lambda s: None if s.base is None else str(s.base)),
    _number("base_samples_per_s", _RATE, _BASE, _base_rate("median")),
    _number("base_low", _RATE, _BASE_LOWER, _base_rate(_LOW)),
    _number("base_high", _RATE, _BASE_UPPER, _base_rate(_HIGH)),
    _number("speedup", "ratio", "samples_per_s / base_samples_per_s, or that of the unit in "
            "speedup_of"),
    _number("speedup_low", "ratio", "samples_per_s_low / base_high, or that of the unit in "
            "speedup_of; empty for the base", "speedup_interval.low"),
    _number("speedup_high", "ratio", "samples_per_s_high / base_low, or that of the unit in "
            "speedup_of; empty for the base", "speedup_interval.high"),
    _number("speedup_coverage", "fraction", "least coverage of the speedup's interval: the product "
            "of the two coverages", "speedup_interval.coverage"),
    _number("efficiency", "ratio", "speedup / (devices / devices of the base); 1 is linear"),
    _number("efficiency_low", "ratio", "the speedup's same end / (devices / devices of the base)",
            "efficiency_interval.low"),
    _number("efficiency_high", "ratio", "the speedup's same end / (devices / devices of the base)",
            "efficiency_interval.high"),
    _text("speedup_missing", "why there is no speedup"),
    _text("speedup_of", "throughput that speedup, efficiency, spread and ci_coverage are of: "
          "samples/s, or tokens/s or figure_unit where not all cases of the series have samples/s",
          lambda s: s.unit if s.samples else ""),
    _number("base_tokens_per_s", _TOKENS, _BASE, _base_tokens("median")),
    _number("base_tokens_per_s_low", _TOKENS, _BASE_LOWER, _base_tokens(_LOW)),
    _number("base_tokens_per_s_high", _TOKENS, _BASE_UPPER, _base_tokens(_HIGH)),
    _number("base_figure", _OWN, _BASE, _base_own("median")),
    _number("base_figure_low", _OWN, _BASE_LOWER, _base_own(_LOW)),
    _number("base_figure_high", _OWN, _BASE_UPPER, _base_own(_HIGH)),
)  # fmt: skip


def _bought(unit: str) -> Callable[[CaseSummary], Any]:
    return lambda s: s.price and s.price.bought(s.median(unit), s.case.topology.nodes)


_SWEEP = "sweep that measured it, in a report of several sweeps"
_CHECKPOINT = "median of this column of runs.csv, over the runs that measured it"

CASE_COLUMNS: tuple[Column[CaseSummary], ...] = (
    _text("series", "the case without its topology: one speedup curve", "case.series"),
    *_case_columns("case"),
    _integer("accumulation", "iterations", "per optimizer step: as the windows report, else as "
             "asked"),
    _integer("global_batch", "samples", "per optimizer step over all devices: as the windows "
             "report, else as asked"),
    _text("scaling", "weak: global batch grows with the devices; strong: it is fixed; mixed: "
          "neither; empty for a series with one device count"),
    _integer("runs", "", "runs of any status"),
    _integer("runs_ok", "", "runs that count: ended ok, with a number", "ok"),
    _text("statuses", "how many runs are in each status", "status_text"),
    *_RATES,
    *_SPEEDUPS,
    _integer("optimizer_steps", "", "fewest in any window that counts"),
    _integer("skipped_steps", "", "most optimizer steps skipped in any window that counts"),
    _number("iteration_ms", "ms", "time of the window / its iterations, median of the runs that "
            "count"),
    _number("step_ms_p50", "ms", "median of step_ms_p50 of the runs that count; not of other "
            "programs' logs"),
    _number("rank_spread_max", "fraction", "largest (slowest - fastest) / slowest of the ranks' "
            "times in any window that counts", "rank_spread"),
    _number("memory_mb_max", "MB", "largest peak memory of a device in any window that counts",
            "memory_mb"),
    _number("exposed_comm", "fraction", "share of an optimizer step that only gradient "
            "synchronisation takes, not hidden behind computation; median of the runs"),
    _number("allreduce_bus_gb_s", "GB/s", "bus bandwidth of an all-reduce of the whole gradient "
            "alone, median of the runs"),
    _text("attention", "PyTorch's attention kernels in the runs that count, joined by +"),
    _number("checkpoint_save_s", "s", _CHECKPOINT),
    _number("checkpoint_load_s", "s", _CHECKPOINT),
    _number("checkpoint_mb_per_rank", "MB", _CHECKPOINT),
    _number("checkpoint_save_mb_s", "MB/s", _CHECKPOINT),
    _number("checkpoint_load_mb_s", "MB/s", _CHECKPOINT),
    _number("gpu_util", "%", "time with a kernel running, mean over devices and runs (NVML)"),
    _number("gpu_memory_mb_max", "MiB", "most memory in use on any device of any run (NVML)",
            "gpu_memory_mb"),
    _number("gpu_joules_per_sample", "J", "energy of all devices / samples, median of the runs",
            "joules_per_sample"),
    _number("tflops_per_device", "TFLOPS", "model FLOPs of the median, forward and backward, "
            "padding included, per device; empty for an unknown model or length"),
    _number("mfu", "fraction", "tflops_per_device / dense peak of the accelerator in that "
            "precision; empty for an unknown accelerator and for CPUs"),
    _text("nccl_transport", "how the ranks talked by NCCL's own lines, in the runs that count; if "
          "they differ, all, separated by ' | '", lambda s: " | ".join(s.transports)),
    _text("flags", "what is odd, as short names separated by spaces", lambda s: " ".join(s.flags)),
    _text("notes", "what the flags say, in sentences with figures, separated by ' | '",
          lambda s: " | ".join(s.notes)),
    _text("sweep", _SWEEP),
    _number("samples_per_currency", "1/currency", "samples that one unit of the currency buys in "
            "the window: samples_per_s x 3600 / (nodes x price of a node-hour); shared nodes count "
            "whole; empty without a price", _bought(_RATE)),
    _number("tokens_per_currency", "1/currency", "tokens that one unit of the currency buys, by "
            "tokens_per_s", _bought(_TOKENS)),
    _text("currency", "that of the price in the site profile", "price.currency"),
)  # fmt: skip
"""One row per case: ``speedup.csv``."""


def _counted(*paths: str) -> Callable[[RunResult], Any]:
    """The first of these figures of a run that counts: a cut run leaves no number behind."""
    value = value_at(*paths)
    return lambda run: value(run) if run.rates else None


def _either(figure: str) -> Callable[[RunResult], Any]:
    """A figure of the window, of ours or of another program's log."""
    return _counted(f"window.{figure}", f"external.{figure}")


def _check(unit: str) -> Callable[[RunResult], Any]:
    check, of_unit = _counted("external.check"), _counted("external.speed_unit")
    return lambda run: check(run) if of_unit(run) == unit else None


def _of_gpu(name: str, figure: str, unit: str, meaning: str) -> Column[RunResult]:
    return _number(name, unit, meaning, _counted(f"gpu.{figure}"))


_EXTERNAL: tuple[Column[RunResult], ...] = (
    _text("format", "format of another program's log", _counted("external.format")),
    _text("evidence", "what the reader of that format rests on: real logs, quoted lines, source "
          "only; told in TOML: a user's table", _counted("external.evidence")),
    _text("rule", "window rule of the figure",
          _counted("external.rule")),
    _text("basis", "clock: time stamps; arrival: when a user's program printed its lines; timer: "
          "the Timer or hook in it; printed: the program's own figures; total: its one figure for "
          "the whole run", _counted("external.basis")),
    _text("unit", "of the log's own figures", _counted("external.unit")),
    _number("factor", "", "samples per iteration for the clock, else samples/s (tokens/s or "
            "figure_unit in a row that has no samples/s) over all devices per printed unit",
            _counted("external.factor")),
    _integer("first_iteration", "", "the window begins after it", _counted("external.first")),
    _integer("last_iteration", "", "the window ends with it", _counted("external.last")),
    _number("check_samples_per_s", _RATE, "the same window on the other basis", _check(_RATE)),
    _number("check_tokens_per_s", _TOKENS, "the same, of a row that has no samples/s",
            _check(_TOKENS)),
)  # fmt: skip


def _window(kind: Callable[..., Column[Any]], name: str, unit: str, meaning: str) -> Column[Any]:
    """A column of a figure that our own windows have."""
    return kind(name, unit, meaning, _counted(f"window.{name}"))


def _checkpoint(figure: str, unit: str, meaning: str) -> Column[RunResult]:
    return _number(f"checkpoint_{figure}", unit, meaning, _counted(f"checkpoint.{figure}"))


RUN_COLUMNS: tuple[Column[RunResult], ...] = (
    _text("run", "identity of the run in its sweep", "run.id"),
    *_case_columns("run.case"),
    _integer("repeat", "", "which repeat of its case, from 1", "run.repeat"),
    _integer("attempt", "", "which attempt at the run this is, from 1"),
    _text("status", "what became of it; only ok counts", "status.value"),
    _text("reason", "why it is not ok"),
    _number("samples_per_s", _RATE, "samples / elapsed_s, over all devices"),
    _number("tokens_per_s", _TOKENS, "over all devices: samples_per_s x seq_len (padding counts), "
            "or for an unknown length as the program prints it",
            lambda r: r.rates.get(_TOKENS)),
    _number("tokens_per_s_per_device", _TOKENS, "tokens_per_s / devices",
            lambda r: None if _TOKENS not in r.rates
            else r.rates[_TOKENS] / r.run.case.topology.devices),
    _number("figure", _OWN, "over all devices, in a unit of the program's own: samples_per_s is "
            "empty then",
            lambda r: r.rates.get(own_unit(r.rates))),
    _text("figure_unit", "unit of that figure: a rate, as GFLOP/s", lambda r: own_unit(r.rates)),
    _window(_integer, "warmup", "iterations", "untimed, before the window"),
    _window(_integer, "iterations", "iterations", "timed: the window"),
    _integer("optimizer_steps", "", "in the window", _either("optimizer_steps")),
    _window(_integer, "skipped_steps", "", "optimizer steps of the window that were skipped"),
    _window(_integer, "accumulation", "iterations", "per optimizer step"),
    _window(_integer, "global_batch", "samples", "per optimizer step over all devices"),
    _window(_integer, "samples", "samples", "through forward and backward in the window, over all "
            "ranks"),
    _number("elapsed_s", "s", "time of the window on the slowest rank", _either("elapsed_s")),
    _window(_number, "rank_spread", "fraction", "(slowest - fastest) / slowest of the ranks' "
            "times"),
    _window(_number, "step_ms_p5", "ms", "percentile over iterations, slowest rank of each"),
    _window(_number, "step_ms_p50", "ms", "percentile over iterations, slowest rank of each"),
    _window(_number, "step_ms_p95", "ms", "percentile over iterations, slowest rank of each"),
    _window(_number, "step_ms_p99", "ms", "percentile over iterations, slowest rank of each"),
    _window(_number, "data_wait_s", "s", "time of the window spent waiting for data"),
    _number("memory_mb", "MB", "peak memory of a device", _either("memory_mb")),
    _number("loss_first", "", "loss as the window begins", _either("loss_first")),
    _number("loss_last", "", "loss as the window ends", _either("loss_last")),
    _number("drift", "fraction", "trend of the step time over the window, of its median",
            _either("drift")),
    _boolean("steady", "", "whether the window passed the steadiness test; empty: not tested",
             _either("steady")),
    _window(_number, "exposed_comm", "fraction", "share of an optimizer step that only gradient "
            "synchronisation takes, not hidden behind computation; measured after the window; a "
            "little below 0 is noise"),
    _number("allreduce_ms", "ms", "all-reduce of the whole gradient alone, slowest rank",
            _counted("allreduces.total_ms")),
    _number("allreduce_bus_gb_s", "GB/s", "its bus bandwidth, as nccl-tests count it",
            _counted("allreduces.total_bus_gb_s")),
    _text("attention", "PyTorch's attention kernels in an iteration of the warm-up: flash, "
          "efficient, cudnn, math, joined by +; empty: none was seen",
          _counted("window.attention")),
    _window(_integer, "graphs", "", "graphs that torch.compile made; empty in mode eager"),
    _window(_integer, "graph_breaks", "", "graph breaks that torch.compile met"),
    _window(_integer, "recompiles", "", "of these graphs, those made inside the window"),
    _checkpoint("save_s", "s", "time to save a checkpoint after the window, files synced to disk, "
                "on the slowest rank; empty where none was measured"),
    _checkpoint("load_s", "s", "time to load that checkpoint, on the slowest rank"),
    _checkpoint("mb_per_rank", "MB", "size of the checkpoint's files / ranks, 1 MB = 10^6 bytes"),
    _checkpoint("save_mb_s", "MB/s", "size of the checkpoint's files / the seconds above"),
    _checkpoint("load_mb_s", "MB/s", "size of the checkpoint's files / the seconds above"),
    *_EXTERNAL,
    _of_gpu("gpu_util", "util", "%", "time with a kernel running, mean over devices (NVML)"),
    _of_gpu("gpu_memory_mb", "memory_mb", "MiB", "most memory in use on any device, by whomever "
            "(NVML); memory_mb is the allocator's peak"),
    _of_gpu("gpu_sm_mhz", "sm_mhz", "MHz", "SM clock, mean over devices"),
    _of_gpu("gpu_watts", "watts", "W", "power of a device, mean"),
    _of_gpu("gpu_joules", "joules", "J", "energy of all devices in the window"),
    _of_gpu("gpu_celsius", "celsius", "deg C", "hottest device"),
    _integer("gpu_throttle", "bits", "every throttle reason NVML gave; 0 for none",
             _counted("gpu.throttle")),
    _text("gpu_joules_by", "how the energy is known: counter (the devices' own), or power (added "
          "up from samples)", _counted("gpu.joules_by")),
    _integer("gpu_devices", "", "devices that reported their energy", _counted("gpu.devices")),
    _of_gpu("gpu_covered", "covered", "fraction", "share of the time watched that samples stand "
            "for, on the device with the least"),
    _of_gpu("gpu_gap_s", "gap_s", "s", "longest time without a sample on any device"),
    _text("gpu_energy_doubt", "why the energy may not be that of the window and of all devices; "
          "empty for no reason", lambda r: "; ".join(energy_doubts(r)) if r.rates else ""),
    _integer("gpu_alloc_retries", "", "how often the framework's allocator was out of memory in "
             "the window, gave its cache back and asked again: each waits for the device",
             _counted("gpu.alloc_retries")),
    _of_gpu("gpu_reserved_mb", "reserved_mb", "MiB", "most memory that the framework's allocator "
            "held on any device, in use or not"),
    _text("nccl_transport", "how the ranks talked by NCCL's own lines (NCCL_DEBUG=INFO); empty "
          "without these", lambda r: nccl.in_words(r.facts) if r.rates else ""),
    _integer("nccl_channels", "", "number of channels in these lines",
             lambda r: nccl.channels(r.facts) if r.rates else None),
    _text("source", "what the row rests on: log, record, scheduler or manifest"),
    _text("launch", "`<job>_<index>.<restarts>`, and `.<repeat>` where a job measures several "
          "repeats: those share an allocation"),
    _text("started", "start of the attempt", unit="UTC"),
    _text("ended", "end of the attempt", unit="UTC"),
    _text("log", "path of the log"),
    _text("warnings", "what the log warns of, separated by ' | '",
          lambda r: " | ".join(r.warnings)),
    _text("sweep", _SWEEP),
)  # fmt: skip
"""One row per run, whatever became of it: ``runs.csv``."""
