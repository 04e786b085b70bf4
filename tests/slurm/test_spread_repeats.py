"""Repeats that are spread over the nodes of a real Slurm: `spread = true` of the site profile."""

from __future__ import annotations

from places import ROOT
from sweeping import Workplace

from dlperf_hpc.records.collect import full_results

# Never two jobs at a time: all nodes share this machine's cores.
SITE = """\
partition = "main"
poll_s = 1.0
spread = true
sbatch = { licenses = "machine:1" }
[environment.default]
mpi = "pmi2"
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }
"""
PROGRAM = f"""
topologies = ["1n1g"]
base = "1n1g"
repeats = 3
time_limit = "00:15:00"
[measure]
warmup = 2
iterations = 10
[case]
framework = "steps"
model = "bert-tiny"
batch_size = 2
seq_len = 16
[program.steps]
launch = "once"
workdir = "{ROOT}/tests/support/programs"
run = ["steps.py", "200", "20", "2"]
[program.steps.read]
format = "megatron"
"""


def test_repeats_that_are_spread_have_other_nodes_each(place: Workplace) -> None:
    spec, site = place.write("apart.toml", PROGRAM), place.write("site.toml", SITE)
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    results = full_results(place.directory("apart")).results
    hosts = [host for result in results for host in result.facts["world"]["hosts"]]
    assert len(hosts) == 3 == len(set(hosts))
