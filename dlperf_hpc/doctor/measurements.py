"""What ``doctor`` measures besides: every node by itself, or pairs of nodes in rounds, and the
table of nodes that comes of it; and how fast the ranks of a short job exchange, by size.

A pair is as slow as its slower node. So each node is measured with several others, one in each
round, and is called slow only if it is below in every one of its pairs: its best pair lies below
the median of all nodes' best ones by more than 3 % and than 4.5 times their median absolute
deviation. A pair that is slow while both of its nodes do well with others is a link.

The bandwidth of a collective is judged only where the link is known: of NCCL within a node by the
NVLinks of its GPUs, between nodes by the InfiniBand or RoCE ports that are up. Below half of what
the link carries is FAIL: rings, trees and small losses of protocol explain less than that.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.doctor import job
from dlperf_hpc.doctor.diagnosis import Facts, ended_well, gpu_checks
from dlperf_hpc.doctor.job import Question, Target, Trial, on_so_many_nodes
from dlperf_hpc.engines.base import CheckResult, Nodes
from dlperf_hpc.errors import DlperfError, number_of

SLOW = 0.03
MADS = 4.5
LINK_SLOW = 0.05
LINK_MADS = 6.0
FEWEST = 3
"""Nodes from which on one can be told from the rest."""


@dataclass(frozen=True)
class Pairing:
    """Two nodes that were measured together: their all-reduce (GB/s of bus bandwidth), and of each
    node the time of its slowest rank for a step of its own (ms), as far as they are known."""

    nodes: tuple[str, str]
    gb_per_s: float | None = None
    ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Slowness:
    """What is slow: a ``node``, or a ``link`` of two; in ``all-reduce`` or ``steps``, and by which
    fraction it lies below the others' median. ``seen`` says how many pairs it rests on."""

    kind: str
    nodes: tuple[str, ...]
    figure: str
    below: float
    seen: int


def rounds_of(nodes: Sequence[str], count: int) -> list[list[tuple[str, str]]]:
    """The first ``count`` rounds of the circle method (a round-robin tournament): each node is in
    one pair of a round, with another partner in each; one has a break where their number is odd.
    There are no more than n - 1 rounds of n nodes (n, if n is odd)."""
    circle: list[str | None] = list(nodes)
    circle += [None] * (len(circle) % 2)
    found = []
    for _ in range(min(count, max(len(circle) - 1, 0))):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def judge(pairings: Iterable[Pairing]) -> list[Slowness]:
    """Slow nodes by their own steps, slow nodes by all-reduce, then slow links."""
    pairings = list(pairings)
    steps: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    for pairing in pairings:
        for node, ms in pairing.ms.items():
            steps.setdefault(node, []).append(1 / ms)
        if pairing.gb_per_s is not None:
            for node in pairing.nodes:
                rates.setdefault(node, []).append(pairing.gb_per_s)
    # Of one pair alone nobody knows which of its nodes is the slow one.
    rates = {node: values for node, values in rates.items() if len(values) > 1}
    slow = [*slow_nodes(steps, "steps"), *slow_nodes(rates, "all-reduce")]
    named = {node for finding in slow for node in finding.nodes}
    return [*slow, *_links([p for p in pairings if not named & {*p.nodes}])]


def slow_nodes(speeds: Mapping[str, Sequence[float]], figure: str) -> list[Slowness]:
    """The nodes whose best of several figures (more is better) lies below the others'."""
    best = {node: max(values) for node, values in speeds.items()}
    if len(best) < FEWEST:
        return []
    centre, limit = _limit(list(best.values()), SLOW, MADS)
    return [
        Slowness("node", (node,), figure, 1 - value / centre, len(speeds[node]))
        for node, value in sorted(best.items())
        if value < limit
    ]


def _links(pairings: Sequence[Pairing]) -> list[Slowness]:
    rates = {p.nodes: p.gb_per_s for p in pairings if p.gb_per_s is not None}
    if len(rates) < FEWEST:
        return []
    centre, limit = _limit(list(rates.values()), LINK_SLOW, LINK_MADS)
    well = {node for nodes, rate in rates.items() if rate >= limit for node in nodes}
    return [
        Slowness("link", nodes, "all-reduce", 1 - rate / centre, 1)
        for nodes, rate in rates.items()
        if rate < limit and well >= {*nodes}
    ]


def _limit(values: Sequence[float], share: float, mads: float) -> tuple[float, float]:
    """The median, and what lies below it by more than a share of it and than so many MADs."""
    centre = statistics.median(values)
    mad = statistics.median(abs(value - centre) for value in values)
    return centre, centre - max(share * centre, mads * mad)


Rows = list[dict[str, Any]]
_WAVE = 32  # jobs at a time
_LEAVE_OUT = "leave it out (exclude in the site profile), and tell the administrators"


@dataclass
class _NodeFacts:
    """What is known of a node: best figures, how often it was measured, what is not well."""

    pairs: int = 0
    steps_ms: float | None = None
    gb_per_s: float | None = None
    ailments: list[str] = field(default_factory=list)

    def take(self, ms: float | None, gb_per_s: float | None) -> None:
        """Keep the better of what was known and this."""
        self.steps_ms = min(filter(None, (ms, self.steps_ms)), default=None)
        self.gb_per_s = max(filter(None, (gb_per_s, self.gb_per_s)), default=None)

    @property
    def text(self) -> str:
        """Its figures, in words."""
        steps = "no steps" if self.steps_ms is None else f"steps of {self.steps_ms:.4g} ms"
        rate = "" if self.gb_per_s is None else f", all-reduce {self.gb_per_s:.3g} GB/s"
        return steps + rate


def pairs(
    question: Question, target: Target, nodes: Nodes, rows: Rows, root: Path
) -> Iterator[CheckResult]:
    """Rounds of jobs on two nodes each; a result for each pair, then one for each node and link
    that is not well. Adds a row for each node."""
    rounds = question.pairs
    planned = rounds_of(nodes.idle, rounds)
    yield from _left_out(nodes)
    if len(nodes.idle) < FEWEST:
        seen = f"{number_of(len(nodes.idle), 'idle node')}: one cannot be told from the other"
        yield CheckResult("skipped", "pairs", seen, f"{FEWEST} or more are needed")
        return
    if len(planned) < rounds:
        seen = f"{len(nodes.idle)} nodes have {len(planned)} rounds, not {rounds}"
        yield CheckResult("ok", "pairs", seen)
    table = {node: _NodeFacts() for node in nodes.idle}
    found: list[Pairing] = []
    for number, couples in enumerate(planned, 1):
        for names, trial in _wave(question, target, root, couples):
            if not isinstance(trial, Trial):
                yield trial
                continue
            pairing = _pairing((names[0], names[1]), trial)
            found.append(pairing)
            yield _pair_result(f"round {number}: {' and '.join(names)}", trial, pairing)
            for node in names:
                table[node].pairs += 1
                table[node].take(pairing.ms.get(node), pairing.gb_per_s)
    yield from _judged(judge(found), table)
    rows += _rows(table, nodes)


def all_nodes(
    question: Question, target: Target, nodes: Nodes, rows: Rows, root: Path
) -> Iterator[CheckResult]:
    """A job on each idle node, in waves; a result for each node. Adds a row for each node."""
    yield from _left_out(nodes)
    table = {node: _NodeFacts() for node in nodes.idle}
    for (node,), trial in _wave(question, target, root, [(node,) for node in nodes.idle]):
        if isinstance(trial, Trial):
            table[node].ailments += _ailments(trial)
            ms = max((steps["ms"] for steps in trial.reported("steps")), default=None)
            table[node].take(ms, _rate(trial))
        else:
            table[node].ailments.append(trial.seen)
    speeds = {node: [1 / seen.steps_ms] for node, seen in table.items() if seen.steps_ms}
    rates = {node: [seen.gb_per_s] for node, seen in table.items() if seen.gb_per_s}
    yield from _judged([*slow_nodes(speeds, "steps"), *slow_nodes(rates, "all-reduce")], table)
    rows += _rows(table, nodes)


def _ailments(trial: Trial) -> list[str]:
    """What is not well with the node of a job."""
    firsts = [node for node in trial.reported("node") if "gpus" in node]
    results = [ended_well(trial)]
    if firsts and trial.target.modules:
        results += gpu_checks(trial, firsts)
    return [result.seen for result in results if result.grade in ("FAIL", "warn")]


def _left_out(nodes: Nodes) -> Iterator[CheckResult]:
    for node, doing in nodes.busy.items():
        yield CheckResult("skipped", f"node {node}", f"not idle: {doing}")


def _wave(
    question: Question, target: Target, root: Path, places: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Trial | CheckResult]]:
    """A job on each of these places, some at a time: what came of it, or why there is none."""
    most = min(_WAVE, question.site.max_submit or _WAVE)
    for start in range(0, len(places), most):
        trials: list[Trial] = []
        named: dict[str, Sequence[str]] = {}
        try:
            for names in places[start : start + most]:
                wanted = replace(target, array=on_so_many_nodes(target.array, len(names)))
                site = question.engine.on_nodes(question.site, names)
                try:
                    trials.append(job.submit(root, wanted, question, site))
                    named[trials[-1].token] = names
                except (DlperfError, OSError) as error:
                    where = " and ".join(names)
                    yield names, CheckResult("FAIL", f"job on {where}", str(error))
            for trial in job.watch(trials, question):
                yield named[trial.token], trial
        finally:
            job.cancel(trials)


def _pairing(names: tuple[str, str], trial: Trial) -> Pairing:
    """By the names that Slurm has for the nodes: their own may differ from them."""
    order = list(dict.fromkeys(node["host"] for node in trial.reported("node")))
    called = dict(zip(names if {*order} <= {*names} else order, names))
    ms: dict[str, float] = {}
    for part in trial.parts.values():
        node = called.get(part.get("node", {}).get("host", ""))
        if "steps" in part and node is not None:
            ms[node] = max(part["steps"]["ms"], ms.get(node, 0.0))
    return Pairing(names, _rate(trial), ms)


def _rate(trial: Trial) -> float | None:
    """The all-reduce's GB/s on GPUs if there was one there, else on host memory."""
    rates = [comm["rates"] for comm in trial.reported("comm")[:1]]
    return next((each[-1]["gb_per_s"] for each in rates if each), None)


def _pair_result(name: str, trial: Trial, pairing: Pairing) -> CheckResult:
    ended = ended_well(trial)
    if ended.grade != "ok":
        return replace(ended, check=name)
    rate = "none" if pairing.gb_per_s is None else f"{pairing.gb_per_s:.3g} GB/s"
    steps = ", ".join(f"{node} {ms:.4g} ms" for node, ms in sorted(pairing.ms.items()))
    return CheckResult("ok", name, f"all-reduce {rate}; steps: {steps or 'none'}")


def _judged(findings: Sequence[Slowness], table: dict[str, _NodeFacts]) -> Iterator[CheckResult]:
    """A result for each node, the slow ones with their reason, and for each slow link."""
    for finding in (each for each in findings if each.kind == "node"):
        facts = table[finding.nodes[0]]
        words = f"slow: {finding.figure} {100 * finding.below:.1f} % below the other nodes"
        if facts.pairs:
            words += f", in all of its {finding.seen} pairs"
        facts.ailments.append(words)
    for node, seen in table.items():
        if seen.ailments:
            words = f"{seen.text}; {'; '.join(seen.ailments)}"
            yield CheckResult("FAIL", f"node {node}", words, _LEAVE_OUT)
        elif seen.steps_ms is None:
            yield CheckResult("warn", f"node {node}", "no job on it gave a figure")
        else:
            yield CheckResult("ok", f"node {node}", seen.text)
    for finding in findings:
        if finding.kind == "link":
            words = f"all-reduce {100 * finding.below:.1f} % below the other pairs, and both nodes"
            to_do = "look at the cables, ports and routes between them"
            name = f"link {' and '.join(finding.nodes)}"
            yield CheckResult("FAIL", name, f"{words} do well with others", to_do)


def _rows(table: Mapping[str, _NodeFacts], nodes: Nodes) -> Rows:
    facts = [(node, "idle", seen) for node, seen in table.items()]
    facts += [(node, doing, _NodeFacts()) for node, doing in nodes.busy.items()]
    return [
        {
            "node": node,
            "state": state,
            "pairs": seen.pairs or None,
            "steps_ms": seen.steps_ms,
            "all_reduce_gb_per_s": seen.gb_per_s,
            "ailments": seen.ailments,
        }
        for node, state, seen in facts
    ]


BELOW = 0.5
"""Share of a link's rate below which an exchange is FAIL."""
_LARGE = 1 << 24  # bytes from which on it is the link that takes the time
_NVLINK = re.compile(r"\b(?:(V100|A100|A800|H100|H200|H800)|(G?B[23]00))\b")
_NVLINK_GB_PER_S = (25.0, 50.0)
"""Of one NVLink in one direction, for the two groups of cards: generations 2 to 4, and 5 (NVIDIA,
"NVLink and NVLink Switch", its table of generations)."""
_SLOW_LINK = "look at nvidia-smi nvlink -s, ibstat, and NCCL_DEBUG=INFO for the transport taken"
_WRONG = "the ranks cannot be trusted with a measurement: NCCL, MPI or the network is broken"


def collective_rows(trial: Trial) -> Rows:
    """What was measured, a row for each size of each collective: GB/s are 10^9 bytes a second."""
    shape = {"nodes": trial.target.topology.nodes, "ranks": trial.target.ranks}
    environment = {"environment": trial.target.environment}
    return [
        {**environment, **shape, "by": part["by"], "collective": part["kind"], **row}
        for part in _parts(trial)
        for row in part["rows"]
    ]


def collective_checks(trial: Trial) -> Iterator[CheckResult]:
    """A result for each collective of a job, and one for what was not tried."""
    parts, hosts = list(_parts(trial)), _hosts(trial)
    if not parts:
        if trial.target.ranks == 1:
            yield trial.found("skipped", "collectives", f"{trial.title}: one rank has no other")
        elif not trial.given_up:
            yield trial.found("FAIL", "collectives", f"{trial.title}: no rank told a figure")
    nodes = number_of(trial.target.topology.nodes, "node")
    for part in parts:
        where = f"{part['by']}, {nodes}, {trial.target.ranks} ranks"
        if not part["rows"]:
            why = part.get("left_out", "no size was measured")
            yield trial.found("skipped", part["kind"] or "collectives", f"{where}: {why}")
        else:
            yield _result(trial, part, where, hosts)


def _parts(trial: Trial) -> Iterator[Facts]:
    parts = sorted(trial.parts.get(0, {}).items())
    return (facts for name, facts in parts if name.startswith("collectives"))


def _hosts(trial: Trial) -> dict[int, str]:
    return {rank: part["node"]["host"] for rank, part in trial.parts.items() if "node" in part}


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
    facts = [part["node"] for part in parts if "node" in part]
    return _between_nodes(facts) if nodes > 1 else _within_a_node(facts)


def _within_a_node(facts: Sequence[Facts]) -> tuple[str, float | None]:
    devices = [device for node in facts for device in node.get("gpus", {}).get("devices") or []]
    kinds = {(str(device.get("name")), device.get("nvlinks") or 0) for device in devices}
    if len(kinds) != 1:
        return "the GPUs of the node are not told, or are not alike", None
    name, count = kinds.pop()
    if not count:
        return "the GPUs have no active NVLink, and the rate of what joins them is not known", None
    card = _NVLINK.search(name)
    if card is None:
        return f"the rate of an NVLink of {name} is not known", None
    return f"{count} NVLinks of a GPU carry", count * _NVLINK_GB_PER_S[card.lastindex == 2]


def _between_nodes(facts: Sequence[Facts]) -> tuple[str, float | None]:
    """What the weakest node's ports carry: a rank uses one port, as NCCL does by default."""
    ports: dict[str, list[float]] = {}
    for node in facts:
        ports[node["host"]] = [port["gb_per_s"] for port in node.get("ports") or []]
    ranks = Counter(node["host"] for node in facts)
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


def collective_table(rows: Sequence[Mapping[str, Any]]) -> str:
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
    title = f"{by}; {number_of(nodes, 'node')}, {ranks} ranks; environment {environment}"
    lines = [title, " " * 10 + "".join(f"{kind:>22}" for kind in kinds)]
    lines.append(f"{'size':>10}" + f"{'us':>11}{'GB/s':>11}" * len(kinds))
    for size in sorted({row["bytes"] for row in rows}):
        found = [cells.get((size, kind)) for kind in kinds]
        each = (
            f"{row['us']:>11.4g}{row['bus_gb_per_s']:>11.3g}" if row else " " * 22 for row in found
        )
        lines.append(f"{size_text(size):>10}" + "".join(each))
    return "\n".join(line.rstrip() for line in lines)
