"""What does ``history`` say of real sweeps, before and after another MPI library?

``python benchmarks/history_real.py [--library DIR] [--sweeps 5]``: small sweeps by the local engine
(bert-tiny on the CPU, one rank under mpiexec): five with the MPICH beside this Python, then five
with another version of it, then five with that version and a preloaded library that makes each
allocation of a tensor wait for 1 ms, as an agent of a site's might. The first two differ in nothing
but the library, which a single rank hardly calls: history should find no change. The last are
really slower, and the cause line should name what was set. One side stands after the other, as on a
cluster that was updated: other work on the machine may change between the two, and history cannot
know that. DIR is what ``pip install --ignore-installed --prefix DIR mpich==VERSION`` makes; without
it the script does that itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

OTHER = "mpich==4.3.2"
SWEEP = """\
cluster = "local"
topologies = ["1n1g"]
base = "1n1g"
repeats = 1
time_limit = "00:02:00"
[case]
framework = "ddp"
model = "bert-tiny"
device = "cpu"
batch_size = 4
seq_len = 64
[measure]
warmup = 3
iterations = 15
checkpoint = false
"""
# PyTorch allocates a tensor on the CPU by posix_memalign. Waiting takes nobody's processor.
AGENT = """\
#include <errno.h>
#include <malloc.h>
#include <unistd.h>
int posix_memalign(void **found, size_t alignment, size_t size) {
    usleep(1000);
    return (*found = memalign(alignment, size)) ? 0 : ENOMEM;
}
"""
Side = tuple[str, Mapping[str, str]]


def installed(place: Path) -> Path:
    """The other version, beside what this Python has: pip would otherwise take that away."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--no-deps"]
    subprocess.run([*argv, "--prefix", str(place), OTHER], check=True)
    return place


def compiled(place: Path) -> Path:
    """The library that makes allocations wait."""
    source, made = place / "agent.c", place / "agent.so"
    source.write_text(AGENT, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


def sides(library: Path, agent: Path) -> tuple[Side, Side, Side]:
    """What each is called, and the environment of its runs."""
    found = library / "lib" / "libmpi.so.12"
    if not found.exists():
        raise SystemExit(f"{found}: there is no such file; pip install --prefix makes it")
    another = {"MPI4PY_LIBMPI": str(found)}
    return ("mpich", {}), ("other", another), ("slow", {**another, "LD_PRELOAD": str(agent)})


def verb(place: Path, *words: str, **env: str) -> str:
    """What a verb of dlperf prints; its exit code must be 0."""
    argv = [sys.executable, "-m", "dlperf_hpc", *words]
    done = subprocess.run(
        argv, cwd=place, env={**os.environ, **env}, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
    return done.stdout


def swept(place: Path, side: Side, count: int) -> Iterator[str]:
    """The directories of as many sweeps, one after another."""
    name, env = side
    for number in range(1, count + 1):
        sweep = f"{name}-{number}"
        verb(place, "sweep", "tiny.toml", "--name", sweep, "--no-check", **env)
        yield f"logs/{sweep}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--library", type=Path, metavar="DIR")
    parser.add_argument("--sweeps", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        place = Path(root)
        library = arguments.library or installed(place / "library")
        (place / "tiny.toml").write_text(SWEEP, encoding="utf-8")
        found = sides(library.resolve(), compiled(place))
        now, then, slow = ([*swept(place, side, arguments.sweeps)] for side in found)
        print("another library alone:", verb(place, "history", *now, *then), sep="\n")
        print(
            "another library, and an agent that is preloaded:",
            verb(place, "history", *now, *slow),
            sep="\n",
        )


if __name__ == "__main__":
    main()
