"""What a sweep may ask of the FSDP back end, seen before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.errors import SpecError
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

SWEEP = """
topologies = ["1n1g", "{topology}"]
base = "1n1g"
[case]
framework = "fsdp"
model = "gpt2-tiny"
batch_size = 8
{lines}
"""


def write(tmp_path: Path, lines: str, topology: str = "2n4g") -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(topology=topology, lines=lines))
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('precision = "fp16"', "fsdp has no 'fp16' (it has fp32, tf32, bf16): a loss scale would"),
        ('optimizer.name = "lamb"', "(it has adam, adamw, sgd): its trust ratio needs norms of wh"),
        ('optimizer.name = "lamb-deepspeed"', "and each rank holds a part of them"),
        ('mode = "tuned"', "fsdp has no 'tuned' (it has eager, compile)"),
        ('shard = "gpu"', "is invalid: write 'all' or 'node'"),
        ("bucket_mb = 50", "is no option of fsdp or gpt2-tiny (they have bind, checkpoint_activ"),
        ("zero_stage = 3", "is no option of fsdp or gpt2-tiny"),
        ("cpu_offload = true", "leave it out: fsdp keeps everything in the device's memory, and"),
    ],
)
def test_refused_with_the_reason(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_sweep(write(tmp_path, lines), registry())
    assert {message in str(issue) for issue in caught.value.issues} == {True}


def test_nodes_of_one_rank_have_nothing_to_shard(tmp_path: Path) -> None:
    """One node of one GPU is the base of a sweep, and stays."""
    with pytest.raises(SpecError) as caught:
        load_sweep(write(tmp_path, 'shard = "node"', "4n1g"), registry())
    (issue,) = caught.value.issues
    assert "'node' is invalid on 4n1g: a node has one rank" in str(issue)


@pytest.mark.parametrize(
    "lines",
    [
        'shard = "node"\nprecision = "bf16"\naccumulation = 4',
        'mode = "compile"\ncheckpoint_activations = true\nreshard_after_forward = false',
        'optimizer.name = "sgd"\nprecision = "tf32"',
    ],
)
def test_taken(tmp_path: Path, lines: str) -> None:
    assert len(load_sweep(write(tmp_path, lines), registry()).cases) == 2


def test_its_options_belong_to_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'shard = "node"')
    path.write_text(path.read_text().replace('"fsdp"', '"ddp"'))
    with pytest.raises(SpecError, match="shard: is no option of ddp or gpt2-tiny"):
        load_sweep(path, registry())
