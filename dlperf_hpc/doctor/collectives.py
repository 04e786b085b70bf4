"""How fast the ranks of a short job exchange, by size: check results, rows, tables.

A bandwidth is judged only where the link is known: of NCCL within a node by the NVLinks of its
GPUs, between nodes by the InfiniBand or RoCE ports that are up. Below half of what the link carries
is FAIL: rings, trees and small losses of protocol explain less than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlperf_hpc.doctor.trial import Trial
from dlperf_hpc.engines.base import CheckResult

BELOW = 0.5
"""Share of a link's rate below which an exchange is FAIL."""
_LARGE = 1 << 24  # bytes from which on it is the link that takes the time
_NVLINK = re.compile(r"\b(?:(V100|A100|A800|H100|H200|H800)|(G?B[23]00))\b")
_NVLINK_GB_PER_S = (25.0, 50.0)
"""Of one NVLink in one direction, for the two groups of cards: generations 2 to 4, and 5 (NVIDIA,
"NVLink and NVLink Switch", its table of generations)."""
_SLOW_LINK = "look at nvidia-smi nvlink -s, ibstat, and NCCL_DEBUG=INFO for the transport taken"
_WRONG = "the ranks cannot be trusted with a measurement: NCCL, MPI or the network is broken"

Facts = Mapping[str, Any]


def rows_of(trial: Trial) -> list[dict[str, Any]]:
    """What was measured, a row for each size of each collective: GB/s are 10^9 bytes a second."""
    shape = {"nodes": trial.target.topology.nodes, "ranks": trial.target.ranks}
    environment = {"environment": trial.target.environment}
    return [
        {**environment, **shape, "by": part["by"], "collective": part["kind"], **row}
        for part in _parts(trial)
        for row in part["rows"]
    ]


def checks(trial: Trial) -> Iterator[CheckResult]:
    """A result for each collective of a job, and one for what was not tried."""
    parts, hosts = list(_parts(trial)), _hosts(trial)
    if not parts:
        if trial.target.ranks == 1:
            yield trial.found("skipped", "collectives", f"{trial.title}: one rank has no other")
        elif not trial.given_up:
            yield trial.found("FAIL", "collectives", f"{trial.title}: no rank told a figure")
    for part in parts:
        where = f"{part['by']}, {_shape(trial)}"
        if not part["rows"]:
            told = part.get("left_out", "no size was measured")
            yield trial.found("skipped", part["kind"] or "collectives", f"{where}: {told}")
            continue
        yield _result(trial, part, where, hosts)


def _parts(trial: Trial) -> Iterator[Facts]:
    told = sorted(trial.parts.get(0, {}).items())
    return (facts for name, facts in told if name.startswith("collectives"))


def _hosts(trial: Trial) -> dict[int, str]:
    return {rank: part["node"]["host"] for rank, part in trial.parts.items() if "node" in part}


def _shape(trial: Trial) -> str:
    nodes, ranks = trial.target.topology.nodes, trial.target.ranks
    return f"{nodes} node{'s' * (nodes > 1)}, {ranks} ranks"


def _result(trial: Trial, part: Facts, where: str, hosts: Mapping[int, str]) -> CheckResult:
    rows = part["rows"]
    wrong = next((row for row in rows if not row["right"]), None)
    if wrong:
        seen = f"{where}: a wrong result at {size_text(wrong['bytes'])}"
        return trial.found("FAIL", part["kind"], seen, _WRONG)
    best = max(rows, key=lambda row: float(row["bus_gb_per_s"]))
    slowest = rows[-1]["slowest_rank"]
    seen = (
        f"{where}: {size_text(rows[0]['bytes'])} in {rows[0]['us']:.3g} us; at most "
        f"{best['bus_gb_per_s']:.3g} GB/s (bus), at {size_text(best['bytes'])}; "
        f"slowest rank {slowest} on {hosts.get(slowest, 'a node that did not tell its name')}"
    )
    if "left_out" in part:
        seen += f"; not measured from {size_text(part['from'])} on: {part['left_out']}"
    if "nccl" not in part["by"] or rows[-1]["bytes"] < _LARGE:
        return trial.found("ok", part["kind"], seen)
    link, rate = expectation(list(trial.parts.values()), trial.target.topology.nodes)
    if rate is None:
        return trial.found("ok", part["kind"], f"{seen}; no expectation: {link}")
    seen += f"; {link}: {rate:.3g} GB/s"
    if best["bus_gb_per_s"] < BELOW * rate:
        return trial.found("FAIL", part["kind"], f"{seen}, and this is below half", _SLOW_LINK)
    return trial.found("ok", part["kind"], seen)


def expectation(parts: Sequence[Facts], nodes: int) -> tuple[str, float | None]:
    """The link between the GPUs of a job and what it carries, in GB/s of bus bandwidth; or None,
    with the reason why that is not known. ``parts`` are what each rank told."""
    told = [part["node"] for part in parts if "node" in part]
    return _between_nodes(told) if nodes > 1 else _within_a_node(told)


def _within_a_node(told: Sequence[Facts]) -> tuple[str, float | None]:
    devices = [device for node in told for device in node.get("gpus", {}).get("devices") or []]
    names = {str(device.get("name")) for device in devices}
    links = {device.get("nvlinks") or 0 for device in devices}
    if len(names) != 1 or len(links) != 1:
        return "the GPUs of the node are not told, or are not alike", None
    name, count = names.pop(), links.pop()
    if not count:
        return "the GPUs have no active NVLink, and the rate of what joins them is not known", None
    card = _NVLINK.search(name)
    if card is None:
        return f"the rate of an NVLink of {name} is not known", None
    return f"{count} NVLinks of a GPU carry", count * _NVLINK_GB_PER_S[card.lastindex == 2]


def _between_nodes(told: Sequence[Facts]) -> tuple[str, float | None]:
    """Of the node whose ports carry least: a rank uses one port, as NCCL does by default."""
    ranks: dict[str, int] = {}
    ports: dict[str, list[float]] = {}
    for node in told:
        ranks[node["host"]] = ranks.get(node["host"], 0) + 1
        ports[node["host"]] = [port["gb_per_s"] for port in node.get("ports") or []]
    rates = [sum(sorted(ports[host], reverse=True)[:count]) for host, count in ranks.items()]
    if not rates or not min(rates):
        return "a node has no InfiniBand or RoCE port that is up", None
    return "the ports of a node carry", min(rates)


def size_text(size: int) -> str:
    """Bytes in the largest unit of which they are a whole number."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and not size % (1 << shift):
            return f"{size >> shift} {unit}"
    return f"{size} B"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people: a block for each job and library, a line for each size; of each collective the
    time of its slowest rank (us) and the bus bandwidth (GB/s). At most 76 columns."""
    blocks: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = (row["environment"], row["by"], row["nodes"], row["ranks"])
        blocks.setdefault(key, []).append(row)
    return "\n\n".join(_block(key, found) for key, found in blocks.items())


def _block(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]) -> str:
    environment, by, nodes, ranks = key
    kinds = list(dict.fromkeys(row["collective"] for row in rows))
    cells = {(row["bytes"], row["collective"]): row for row in rows}
    title = f"{by}; {nodes} node{'s' * (nodes > 1)}, {ranks} ranks; environment {environment}"
    lines = [title, " " * 10 + "".join(f"{kind:>22}" for kind in kinds)]
    lines.append(f"{'size':>10}" + f"{'us':>11}{'GB/s':>11}" * len(kinds))
    for size in sorted({row["bytes"] for row in rows}):
        found = [cells.get((size, kind)) for kind in kinds]
        each = (
            f"{row['us']:>11.4g}{row['bus_gb_per_s']:>11.3g}" if row else " " * 22 for row in found
        )
        lines.append(f"{size_text(size):>10}" + "".join(each))
    return "\n".join(line.rstrip() for line in lines)
