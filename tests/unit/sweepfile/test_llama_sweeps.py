"""The sweeps of Llama 3: what they plan, by hand from the sizes, and on a node without torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from places import ROOT

from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

PARAMETERS = {"llama3-1b": 1_235_814_400, "llama3-8b": 8_030_261_248}
WIDTHS = {"llama3-1b": (2048, 16), "llama3-8b": (4096, 32)}
MEMORY = {"h100_llama": 80e9, "h200_llama": 141e9}


def cases(name: str) -> list[Case]:
    return list(load_sweep(ROOT / "sweeps" / f"{name}.toml", registry()).cases)


@pytest.mark.parametrize("name", MEMORY)
def test_every_model_on_every_topology_that_holds_it(name: str) -> None:
    found = cases(name)
    each = Counter((case.model, str(case.topology)) for case in found)
    large = ["1n4g", "1n8g", "2n8g", "4n8g"]
    wanted = {("llama3-1b", each) for each in ("1n1g", "1n2g", *large)}
    wanted |= {("llama3-8b", each) for each in large}
    if name == "h200_llama":
        wanted.add(("llama3-8b", "1n2g"))
    assert each.keys() == wanted
    for case in found:
        assert (case.precision, case.seq_len) == ("bf16", 8192)
        assert case.option("checkpoint_activations") == (case.model == "llama3-8b")


@pytest.mark.parametrize("name", MEMORY)
def test_what_the_file_says_of_memory_fits(name: str) -> None:
    """Its own estimate, term by term, for each case."""
    for case in cases(name):
        number, devices = PARAMETERS[case.model], case.topology.devices
        if case.framework == "ddp":
            spread = devices if case.option("optimizer_placement") else 1
            held = number * (4 + 4 + 8 / spread + 2)  # weights, gradients, states, bf16 copies
        elif case.framework == "fsdp":
            held = number * 16 / devices
        else:  # bf16 weights and gradients besides, and a bucket of 5e8
            held = number * 20 / devices + 2 * 5e8
        hidden, layers = WIDTHS[case.model]
        whole = 50 * hidden * layers
        if case.option("checkpoint_activations"):
            whole = 4 * hidden * layers + 50 * hidden
        sample = 8192 * (whole + 6 * 128_256)
        assert held + case.batch_size * sample < MEMORY[name], case.id


@pytest.mark.processes
@pytest.mark.parametrize("name", MEMORY)
def test_a_dry_run_prints_the_plan_without_torch(name: str) -> None:
    code = (
        "import sys; from dlperf_hpc.__main__ import main\n"
        f"code = main(['sweep', '{name}', '--dry-run', '--cluster', 'slurm'])\n"
        "sys.exit(code or 10 * bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert f"1n8g.{name}" in done.stdout and f"4n8g.{name}" in done.stdout
