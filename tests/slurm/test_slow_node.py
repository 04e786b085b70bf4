"""A node whose processes are really slower is named: by pairs, by runs on different nodes, and by
the own times of each run's ranks.

All nodes share this machine's cores with whatever else runs here. So jobs that are compared run at
the same time, and nothing is asserted of the other nodes but that the slow one is below them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fixtures_slurm import Onebox
from places import ROOT
from slowing import slowed
from sweeping import TINY, Workplace

SLOW = "n3"
# As in slurm/onebox.toml.
MPI = '[environment.default]\nmpi = "pmi2"\nenv = { UCX_TLS = "tcp,self" }\n'
SITE = """\
partition = "main"
poll_s = 0.5
exclusive = true
"""
SWEEP = f"""
topologies = ["1n1g"]
base = "1n1g"
repeats = {{repeats}}
time_limit = "00:15:00"
[measure]
warmup = 10
iterations = 40
[case]
framework = "hashing"
model = "bert-tiny"
device = "cpu"
batch_size = 2
seq_len = 16
[program.hashing]
launch = "rank"
workdir = "{ROOT}/tests/support/programs"
run = ["hashing.py", "50", "2"]
[program.hashing.read]
format = "megatron"
"""


def spec(place: Workplace, repeats: int) -> Path:
    return place.write("slow.toml", SWEEP.format(repeats=repeats))


def measures(argv: Sequence[str]) -> bool:
    """Whether it is a rank of doctor's job that has looked at its node, and imported torch: that
    is not measured, and would take a slow node most of the test's time."""
    place = next((Path(each) for each in argv if each.endswith("/exchange")), None)
    return place is not None and "srun" not in argv[0] and len([*place.glob("told-?")]) > 1


def hashes(argv: Sequence[str]) -> bool:
    """Whether it is the program."""
    return any(each.endswith("hashing.py") for each in argv)


def trains(argv: Sequence[str], root: Path) -> bool:
    """Whether it is a rank of the sweep in ``root``, and a run there times steps on their own: the
    windows before would only take the test's time."""
    begun = (b" phase name=communication" in log.read_bytes() for log in root.rglob("*_?.log"))
    return "dlperf_hpc.train" in argv and any(begun)


def test_its_pairs_name_it(place: Workplace, onebox: Onebox) -> None:
    """In each round both pairs are measured at the same time. Other work on this machine may set
    the other nodes so far apart that nobody can be named: then it is measured once more."""
    arguments = (spec(place, 1), "--site", place.write("site.toml", SITE + MPI))
    for _ in range(2):
        with slowed(onebox, SLOW, measures):
            done = place.verb("doctor", *arguments, "--pairs", 3, "--json", timeout=120)
        answer = json.loads(done.stdout)
        rows = {row["node"]: row for row in answer["nodes"]}
        assert rows.keys() == {"n1", "n2", "n3", "n4"}, done.stdout + done.stderr
        assert all(row["pairs"] == 3 for row in rows.values())
        if rows[SLOW]["ailments"]:
            break
    assert max(rows, key=lambda node: rows[node]["steps_ms"]) == SLOW
    assert min(rows, key=lambda node: rows[node]["all_reduce_gb_per_s"]) == SLOW
    assert any(words.startswith("slow: ") for words in rows[SLOW]["ailments"]), rows
    assert done.returncode == 1 and answer["ok"] is False


def test_runs_on_different_nodes_name_it(place: Workplace, onebox: Onebox) -> None:
    """Three runs on it and nine on the others: with fewer, chance would give as much. Other work on
    this machine may slow one of the others meanwhile: then once more."""
    there = place.write("there.toml", f'{SITE}sbatch = {{ nodelist = "{SLOW}" }}\n')
    elsewhere = place.write("elsewhere.toml", f'{SITE}exclude = "{SLOW}"\n')
    for name in ("first", "second"):
        options = ("--name", name, "--no-check")
        with slowed(onebox, SLOW, hashes):
            first = place.verb("sweep", spec(place, 3), "--site", there, *options)
            assert first.returncode == 0, first.stdout + first.stderr
            done = place.verb("sweep", spec(place, 12), "--site", elsewhere, "--wait", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        told = place.verb("nodes", place.directory(name), "--json")
        found = json.loads(told.stdout)
        if found["slow"][:1] == [SLOW]:
            break
    assert told.returncode == 1 and found["runs"] == found["compared"] == 12, told.stderr
    rows = {row["node"]: row for row in found["nodes"]}
    assert found["slow"][0] == SLOW, rows
    assert [row["runs"] for row in found["no_rank_times"]] == [12]  # a program's steps are its own


def test_the_own_times_of_its_ranks_name_it(place: Workplace, onebox: Onebox) -> None:
    """Two runs, the fewest, on the same two nodes at the same time. Their throughput says nothing
    of nodes, and in a step with all-reduce the rank that is well waits for the slow one. Other work
    on this machine may set the two runs so far apart that nothing is certain: then once more."""
    more = f'sbatch = {{ nodelist = "n2,n3" }}\n{MPI}'
    site = place.write("pair.toml", SITE.replace("true\n", f"false\n{more}"))
    text = TINY.format(repeats=2, topologies=["2n1g"], time_limit="00:20:00")
    text = text.replace("iterations = 6", "iterations = 50\ncheckpoint = false")
    text = text.replace("batch_size = 2\nseq_len = 16", "batch_size = 4\nseq_len = 64")
    sweep = place.write("ranks.toml", text)
    for name in ("first", "second"):
        directory = place.directory(name)
        with slowed(onebox, SLOW, partial(trains, root=directory)):
            done = place.verb(
                "sweep", sweep, "--name", name, "--site", site, "--wait", "--no-check"
            )
        assert done.returncode == 0, done.stdout + done.stderr
        told = place.verb("nodes", directory, "--json")
        found = json.loads(told.stdout)
        if found["slow"]:
            break
    assert told.returncode == 1 and found["slow"] == [SLOW], told.stdout + told.stderr
    assert found["compared"] == 0 and found["no_rank_times"] == []
    (device,) = (row for row in found["devices"] if row["slow"])
    assert (device["name"], device["slowest"], device["runs"]) == (f"{SLOW} rank 0", 2, 2)
