"""Users' programs on their way to a task: command lines, arrays, the manifest, growth."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dlperf_hpc.engines.base import run_program
from dlperf_hpc.engines.plan import differences, make_manifest
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Manifest, read_manifest, write_manifest
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

SWEEP = """
topologies = ["2n4g"]
repeats = 2
[case]
model = "bert-tiny"
batch_size = 4
[matrix]
framework = ["ddp", "mine"]
[program.mine]
launch = "{launch}"
run = ["train.py", "{{batch_size}}", "$(touch /tmp/x)"]
"""


def planned(place: Path, launch: str, name: str = "mine") -> Manifest:
    path = place / "s.toml"
    path.write_text(SWEEP.format(launch=launch).replace("mine", name))
    return make_manifest(load_sweep(path, registry()), Site(), "slurm")


def test_a_program_may_be_called_default(tmp_path: Path) -> None:
    names = [array.name for array in planned(tmp_path, "rank", "default").arrays]
    assert names == ["2n4g.s", "2n4g.s-default"]


@pytest.mark.parametrize(
    ("launch", "tasks", "srun"),
    [
        ("rank", 4, ""),
        ("torchrun", 1, ""),
        ("node", 1, ""),
        ("once", 4, "--nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap"),
    ],
)
def test_an_array_of_a_program(tmp_path: Path, launch: str, tasks: int, srun: str) -> None:
    """It is apart from those of back ends, and no word of a table is in its script."""
    ddp, mine = planned(tmp_path, launch).arrays
    assert (ddp.name, mine.name) == ("2n4g.s", "2n4g.s-mine")
    script = batch_script(tmp_path, mine, Site())
    assert f"#SBATCH --ntasks-per-node={tasks}\n" in script
    assert srun in script and "touch" not in script
    command = f"dlperf_hpc.train.program {tmp_path} {mine.name} {sys.executable}"
    assert command in script and "dlperf_hpc.train.program" not in batch_script(
        tmp_path, ddp, Site()
    )


def test_a_supervisor_is_outside_of_a_container(tmp_path: Path) -> None:
    _, mine = planned(tmp_path, "rank").arrays
    program = run_program(tmp_path, mine)
    box = Environment(apptainer={"image": "/images/x.sif"})  # type: ignore[arg-type]
    words = box.task_command(tmp_path, program.arguments, program.supervised)
    assert words[0] == sys.executable and words[-2:] == ["/images/x.sif", "python3"]
    assert words.index("apptainer") > words.index(mine.name)
    pyxis = Environment(pyxis={"image": "x"})  # type: ignore[arg-type]
    words = pyxis.task_command(tmp_path, program.arguments, program.supervised)
    assert (words[0], words[-1]) == ("python3", "python3")


def test_the_manifest_has_the_table_and_believes_no_other(tmp_path: Path) -> None:
    manifest = planned(tmp_path, "torchrun")
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    path = tmp_path / layout.MANIFEST
    data = json.loads(path.read_text())
    for change, words in (
        ({"run": "rm"}, "program.mine.run is 'rm'"),
        ({"launch": "rank"}, "launch of 'mine' is not that of"),
        ({"run": ["{nobody}"]}, "there is no placeholder 'nobody'"),
    ):
        table = {**data["programs"]["mine"], **change}
        path.write_text(json.dumps({**data, "programs": {"mine": table}}))
        with pytest.raises(LedgerError) as told:
            read_manifest(tmp_path)
        assert words in str(told.value)
    path.write_text(json.dumps({**data, "programs": {}}))
    with pytest.raises(LedgerError, match="there is no 'mine', of which"):
        read_manifest(tmp_path)


def test_another_command_contradicts_the_sweep(tmp_path: Path) -> None:
    there = planned(tmp_path, "torchrun")
    asked = planned(tmp_path, "node")
    found = differences(there, asked)
    assert 'program.mine.launch: there "torchrun", here "node"' in found
