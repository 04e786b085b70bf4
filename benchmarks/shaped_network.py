"""Is the all-reduce probe right, and what is foretold by it? In a network whose speed is known.

As root: ``python benchmarks/shaped_network.py [--mbit 20 40] [--nodes 1 2 4 8]``. Each node is one
process in a network namespace; veth pairs join the namespaces to a bridge, and ``tc`` limits what
each sends (tbf). MPI goes through shared memory, gloo through the shaped links; the probe and the
prediction from 1 and 2 nodes are the package's own, by the probe and by the form for two counts.
Compute is a sleep; the exchange is real, in buckets that begin while it computes: of two the second
is hidden by nothing, of four the last one, and the first begins behind a forward pass or without
one. Bars: the probe's bus bandwidth within 10 % of what a perfect exchange could have of the limit,
whose frames have headers; the step at 2 and 4 times the most measured nodes within 10 %. The limits
are so low that two busy cores do not matter: a rank that waits for a core stops its links.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dlperf_hpc.analysis import prediction
from dlperf_hpc.model.result import AllReduces

BAR = 0.10
PAYLOAD = 1448 / 1514  # TCP with time stamps in Ethernet frames of 1500 bytes, as tbf counts them
_BURST = "16kb"  # little beside a gradient: what a full bucket of tbf lets through at once


_FORBIDDEN = ("not permitted", "denied", "not supported", "unknown", "read-only")
"""What ip and tc say where the machine does not let us, or its kernel has no such device."""


class NoNamespaces(Exception):
    """This machine does not let this user make network namespaces, or lacks ip or tc."""


def _address(node: int) -> str:
    return f"10.231.7.{node + 1}"


def _ip(*words: str) -> None:
    subprocess.run([*words], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Network:
    """Namespaces ``names`` with an interface eth0 each, joined by a bridge."""

    names: tuple[str, ...]

    @classmethod
    @contextlib.contextmanager
    def of(cls, nodes: int, mbit: int) -> Iterator[Network]:
        """A network of so many nodes, each of which sends ``mbit`` (10^6 bit/s, frames counted) at
        most; it is removed however the block ends. :class:`NoNamespaces` where it cannot be."""
        # An interface's name has at most 15 characters.
        stem = f"dlp{os.getpid()}"
        made = cls(tuple(f"{stem}n{i}" for i in range(nodes)))
        try:
            made._make(f"{stem}b", mbit)
        except (OSError, subprocess.CalledProcessError) as error:
            made._remove(f"{stem}b")
            words = str(getattr(error, "stderr", "") or error).strip()
            if isinstance(error, OSError) or any(each in words.lower() for each in _FORBIDDEN):
                raise NoNamespaces(words) from error
            raise RuntimeError(f"{error}: {words}") from error
        try:
            yield made
        finally:
            made._remove(f"{stem}b")

    def _make(self, bridge: str, mbit: int) -> None:
        _ip("ip", "link", "add", bridge, "type", "bridge")
        _ip("ip", "link", "set", bridge, "up")
        for i, name in enumerate(self.names):
            _ip("ip", "netns", "add", name)
            inside = ("ip", "netns", "exec", name)
            ends = ("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0")
            _ip(*ends, "netns", name)
            _ip("ip", "link", "set", f"{name}v", "master", bridge, "up")
            _ip(*inside, "ip", "addr", "add", f"{_address(i)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip(*inside, "ip", "link", "set", device, "up")
            # A rank that has no core for a moment must not stop its link: larger windows.
            for way in ("rmem", "wmem"):
                sizes = f"net.ipv4.tcp_{way}=4096 4194304 16777216"
                _ip(*inside, "sysctl", "-qw", sizes)
            # BBR, the host's perhaps, paces below the limit while it looks for it: 84 to 99 %. Reno
            # is allowed in every namespace.
            _ip(*inside, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
            # Frames as a wire has them: segments put together are more than tbf lets through.
            shape = f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst {_BURST} latency 400ms"
            _ip(*inside, "ip", "link", "set", "eth0", "gso_max_size", "1514", "gso_max_segs", "1")
            _ip(*inside, *shape.split())

    def _remove(self, bridge: str) -> None:
        # A pair first: the kernel takes a namespace's devices away some time after its name.
        pairs = [("link", "del", f"{name}v") for name in self.names]
        names = [("netns", "del", name) for name in self.names]
        for words in (*pairs, *names, ("link", "del", bridge)):
            with contextlib.suppress(OSError):
                subprocess.run(["ip", *words], capture_output=True, check=False)

    def run(self, nodes: int, settings: Settings, work: Path, limit_s: float) -> dict[str, Any]:
        """What rank 0 of so many ranks measured, a rank in each namespace."""
        out = work / f"{nodes}.json"
        script = f'exec ip netns exec {self.names[0][:-1]}$PMI_RANK "$@"'
        words = [sys.executable, __file__, "--rank", str(out), json.dumps(vars(settings))]
        mpiexec = Path(sys.executable).with_name("mpiexec")
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [str(mpiexec), "-n", str(nodes), "sh", "-c", script, "sh", *words],
            env=env, check=True, capture_output=True, text=True, timeout=limit_s,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(out.read_text())
        return found


@dataclass(frozen=True)
class Settings:
    """``compute_s`` of a step: of it ``forward``, a share, in which nothing is sent, then
    ``buckets`` parts after each of which ``megabytes / buckets`` of the gradient are; ``steps`` are
    timed behind one that is not."""

    compute_s: float = 0.6
    forward: float = 0.0
    megabytes: float = 2.0
    buckets: int = 2
    steps: int = 3


class _Sleeper:
    """A session whose compute is a sleep and whose exchange is gloo's."""

    def __init__(self, world: Any, settings: Settings) -> None:
        import torch

        from dlperf_hpc.train.torch.session import join

        self.world, self.settings, self.device = world, settings, torch.device("cpu")
        join(world, self.device)
        each = int(settings.megabytes * 1e6) // settings.buckets // 4
        self._parts = [torch.ones(each) for _ in range(settings.buckets)]

    def step(self) -> None:
        import torch.distributed as dist

        under_way, forward_s = [], self.settings.compute_s * self.settings.forward
        time.sleep(forward_s)
        for part in self._parts:
            time.sleep((self.settings.compute_s - forward_s) / len(self._parts))
            under_way.append(dist.all_reduce(part.fill_(1.0), async_op=True))
        for each in under_way:
            each.wait()

    def gradient_buckets(self) -> list[int]:
        return [4 * part.numel() for part in self._parts]

    def timed_all_reduces(self, sizes: Sequence[int], budget_s: float) -> dict[str, Any]:
        from dlperf_hpc.train.torch.session import TorchSession

        own: Any = self  # what the method uses of a session is here
        return TorchSession.timed_all_reduces(own, sizes, budget_s)


def rank(out: Path, settings: Settings) -> None:
    """Measure on one rank: steps, slowest rank, median; then the package's probe."""
    from dlperf_hpc.train import measurement
    from dlperf_hpc.train.probe.node import initialised_mpi
    from dlperf_hpc.train.ranks import World

    comm = initialised_mpi().COMM_WORLD
    world = World(comm.Get_rank(), tuple(map(_address, range(comm.Get_size()))), comm)
    session: Any = _Sleeper(world, settings)
    times = []
    session.step()
    for _ in range(settings.steps):
        world.barrier()
        began = time.perf_counter()
        session.step()
        times.append(time.perf_counter() - began)
    step_s = statistics.median(map(max, zip(*world.gather(times))))
    elapsed = sum(times)
    window = measurement.MeasuredWindow(
        0.0, elapsed, times, 0.0, 0.0, settings.steps, [], settings.steps, 0, True
    )
    found, reason = None, "one process"
    if world.size > 1:
        found, reason = measurement.probe_all_reduces(session, world, window)
    if world.rank == 0:
        row = {"step_s": step_s, "reason": reason, "probe": found and vars(found)}
        out.write_text(json.dumps(row))
    world.barrier()


@dataclass(frozen=True)
class Foretold:
    """A count of nodes: its step (s), as measured and by each form, the probe (None on one node,
    where there is nothing to reduce), and how far off its form says that it may be, a fraction."""

    nodes: int
    step_s: float
    probe: AllReduces | None
    by_probe_s: float | None = None
    by_form_s: float | None = None
    unsure: float | None = None

    def bandwidth(self, mbit: int) -> tuple[str, str]:
        """The probe's bus bandwidth, Mbit/s, and its share of what the limit lets through."""
        if self.probe is None:
            return "-", "-"
        bus = self.probe.total_bus_gb_s * 8e3
        return f"{bus:.1f}", f"{100 * bus / mbit / PAYLOAD:.1f} %"


def foretell(mbit: int, counts: Sequence[int], settings: Settings, work: Path) -> list[Foretold]:
    """Measure all counts, and predict the third and later ones from the first two."""
    with Network.of(max(counts), mbit) as network:
        rows = {n: network.run(n, settings, work, 300.0) for n in counts}
    probes = {n: row["probe"] and AllReduces.from_dict(row["probe"]) for n, row in rows.items()}
    alone = {n: probe.total_ms / 1e3 if probe else 0.0 for n, probe in probes.items()}
    steps = {n: rows[n]["step_s"] for n in counts[:2]}
    made = [Foretold(n, rows[n]["step_s"], probes[n]) for n in counts[:2]]
    for n in counts[2:]:
        by_probe = prediction.probed_step(steps, alone, n)
        gamma = prediction.gamma_for(steps, n)
        form = prediction.step_at(steps, n, gamma)
        found = (by_probe.step, form, by_probe.unsure) if by_probe else (None, form)
        made.append(Foretold(n, rows[n]["step_s"], probes[n], *found))
    return made


def off(found: float | None, truth: float, unsure: float | None = None) -> str:
    """``0.123 (+1.2 %, +-3 %)``."""
    limits = "" if unsure is None else f", +-{100 * unsure:.0f} %"
    return "-" if found is None else f"{found:.3f} ({100 * (found / truth - 1):+.1f} %{limits})"


def main() -> None:
    """Measure and print."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--forward", type=float, nargs="+", default=[0.0, 1 / 3])
    parser.add_argument("--buckets", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    heads = ("Mbit/s", "forward", "buckets", "nodes", "bus Mbit/s", "of the limit", "step, s")
    print("| " + " | ".join([*heads, "by probe", "by form"]) + " |")
    print("|" + "---:|" * 9)
    cells = product(arguments.mbit, arguments.forward, arguments.buckets)
    for mbit, forward, buckets in cells:
        megabytes = mbit / 20
        settings = Settings(forward=forward, megabytes=megabytes, buckets=buckets, steps=5)
        with tempfile.TemporaryDirectory() as work:
            for row in foretell(mbit, arguments.nodes, settings, Path(work)):
                made = [mbit, f"{forward:.2f}", buckets, row.nodes, *row.bandwidth(mbit)]
                made += [f"{row.step_s:.3f}", off(row.by_probe_s, row.step_s, row.unsure)]
                made += [off(row.by_form_s, row.step_s)]
                print("| " + " | ".join(map(str, made)) + " |", flush=True)


if __name__ == "__main__":
    if "--rank" in sys.argv:
        rank(Path(sys.argv[2]), Settings(**json.loads(sys.argv[3])))
    else:
        main()
