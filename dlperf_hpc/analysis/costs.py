"""What runs need beside time: energy with its validity, node-hours, and the memory of a case that
did not fit, by the line through smaller batches."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from dlperf_hpc.analysis.flags import MOST_SAID, Flag
from dlperf_hpc.model.case import CaseFacts
from dlperf_hpc.model.checks import is_number
from dlperf_hpc.model.result import GpuUse, RunResult, Status

_COVERED = 0.9
_GAP_S = 5.0
_LONGER = 1.05
_HOUR_S = 3600.0
_MOST_PRICE = 1e9  # as a site profile allows


def energy_doubts(result: RunResult) -> list[str]:
    """Why the energy of a run may not be that of its window and all of its devices, in words; none
    where there is no energy, or no reason."""
    gpu, (elapsed, _) = result.gpu, measured(result)
    if gpu is None or gpu.joules is None:
        return []
    found = []
    devices = result.run.case.topology.devices
    if gpu.devices < devices:
        found.append(f"{gpu.devices} of {devices} devices told their energy")
    if gpu.joules_by == "power":
        found += _power_doubts(gpu)
    if elapsed and gpu.watched_s is not None and not _is_near(gpu.watched_s, elapsed):
        seconds = f"{gpu.watched_s:.1f} s, and the window has {elapsed:.1f} s"
        found.append(f"it is that of {seconds}")
    return found


def _is_near(watched_s: float, elapsed_s: float) -> bool:
    """A user's program may be watched for less than the window, if a rule takes another one."""
    return elapsed_s / _LONGER <= watched_s <= elapsed_s * _LONGER


def _power_doubts(gpu: GpuUse) -> list[str]:
    found, covered = [], gpu.covered or 0.0
    if covered < _COVERED:
        found.append(f"it is made of samples of power that cover {100 * covered:.0f} % of it")
    if gpu.gap_s is not None and gpu.gap_s > _GAP_S:
        found.append(f"no sample of power for {gpu.gap_s:.1f} s")
    return found


def of_energy(results: Sequence[RunResult]) -> list[Flag]:
    """Whether the energy of some run that counts is in doubt."""
    doubts = {result.run.id: words for result in results if (words := energy_doubts(result))}
    if not doubts:
        return []
    first = [f"{run}: {'; '.join(words)}" for run, words in [*doubts.items()][:MOST_SAID]]
    more = f"; and {len(doubts) - MOST_SAID} more runs" if len(doubts) > MOST_SAID else ""
    return [Flag("energy-in-doubt", f"{' | '.join(first)}{more}")]


@dataclass(frozen=True)
class Price:
    """What one node costs in an hour, in a currency by its three letters."""

    node_hour: float
    currency: str

    def of(self, node_hours: float) -> float:
        """What so many node-hours cost."""
        return self.node_hour * node_hours

    def bought(self, per_s: float | None, nodes: int) -> float | None:
        """How much of what comes at this rate one unit of the currency buys: rate x 3600 / (nodes x
        price). Nodes count whole, also where other jobs share them."""
        return None if per_s is None else per_s * _HOUR_S / self.of(nodes)


def price_of(site: Mapping[str, Any]) -> Price | None:
    """The price in a site profile as a manifest has it; None if it has none that can be one."""
    row = site.get("node_hour")
    if not isinstance(row, Mapping):
        return None
    price: Any = row.get("price")
    currency = str(row.get("currency"))
    fits = is_number(price) and 0 < price <= _MOST_PRICE and re.fullmatch("[A-Z]{3}", currency)
    return Price(price, currency) if fits else None


@dataclass(frozen=True)
class Cost:
    """What runs took, in node-hours.

    ``used`` is from the first to the last line of the log of each of the ``runs`` that tell both;
    ``requested`` is what their time limits reserved, None where a limit is not known; ``window`` is
    what of it was measured, in the runs that count, and ``samples`` are theirs, None where a log
    does not tell. ``unknown`` is how many runs began, or may have, of which no log tells how long
    they took. Earlier attempts are in none of it."""

    runs: int
    unknown: int
    used: float
    requested: float | None
    window: float | None
    samples: float | None

    @property
    def window_share(self) -> float | None:
        """Of the node-hours used, the fraction that was window."""
        return self.window / self.used if self.used > 0 and self.window is not None else None

    @property
    def samples_per_node_hour(self) -> float | None:
        """Samples of the windows that count over all node-hours used; None where none are known."""
        return self.samples / self.used if self.used > 0 and self.samples else None


def cost(results: Iterable[RunResult], limits_s: Mapping[str, int]) -> Cost | None:
    """Of these runs; ``limits_s`` are their time limits by run id. None where no log tells how long
    a run took."""
    runs = unknown = 0
    used = requested = 0.0
    known = True
    windows: list[float | None] = []
    samples: list[float | None] = []
    for result in results:
        took = _took_s(result)
        nodes = result.run.case.topology.nodes
        if took is None:
            unknown += result.source in ("log", "record")
            continue
        runs += 1
        used += nodes * took / _HOUR_S
        known &= result.run.id in limits_s
        requested += nodes * limits_s.get(result.run.id, 0) / _HOUR_S
        if result.rates:
            elapsed, through = measured(result)
            windows.append(elapsed and nodes * elapsed / _HOUR_S)
            samples.append(through)
    if not runs:
        return None
    return Cost(runs, unknown, used, requested if known else None, _sum(windows), _sum(samples))


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def measured(result: RunResult) -> tuple[float | None, float | None]:
    """The time of a run's window, s, and its samples."""
    if result.window is not None:
        return result.window.elapsed_s, result.window.samples
    elapsed = result.external.elapsed_s if result.external else None
    speed = result.samples_per_s
    return elapsed, elapsed * speed if elapsed is not None and speed is not None else None


def _took_s(result: RunResult) -> float | None:
    """From the first to the last line of a run's log, s; None if it does not tell both."""
    try:
        began, ended = map(_moment, (result.started, result.ended))
    except ValueError:
        return None
    took = (ended - began).total_seconds()
    return took if took > 0 else None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


class Peak(NamedTuple):
    """A case's peak of memory, MB per device; None if no run of its counts. ``sweep`` is that of
    its runs."""

    sweep: str
    case: CaseFacts
    memory_mb: float | None


def does_not_fit(group: Collection[RunResult]) -> bool:
    """Whether a case has no run that counts, and one that ended out of memory."""
    statuses = [result.status for result in group if not result.counts]
    return len(statuses) == len(group) and Status.OUT_OF_MEMORY in statuses


def needed(case: Peak, cases: Sequence[Peak]) -> str:
    """What a case that does not fit needs, in a sentence: by the straight line through the two
    largest smaller batches of cases that are alike in all else. Activations grow with the batch,
    weights and states do not. Without two such batches it says that."""
    batch, wanted = case.case.batch_size, _alike(case)
    text = "ran out of memory"
    if not batch:
        return text
    sizes = {
        size: each.memory_mb
        for each in cases
        if (size := each.case.batch_size) and each.memory_mb is not None and _alike(each) == wanted
    }
    peaks = sorted((size, peak) for size, peak in sizes.items() if size < batch)[-2:]
    if len(peaks) < 2:
        return f"{text}; two smaller batches of this case would tell how much it needs"
    (small, low), (large, high) = peaks
    slope = (high - low) / (large - small)
    if slope <= 0:
        return f"{text}; batches {small} and {large} took {low:.0f} and {high:.0f} MB a device"
    need = high + slope * (batch - large)
    line = f"by the line through {low:.0f} MB at {small} and {high:.0f} MB at {large}"
    return f"{text}; batch {batch} needs about {need:.0f} MB a device, {line}"


def _alike(peak: Peak) -> tuple[object, ...]:
    case = peak.case
    alike = (case.framework, case.model, case.topology, case.precision, case.seq_len)
    return (peak.sweep, *alike, case.accumulation, tuple(case.tags))
