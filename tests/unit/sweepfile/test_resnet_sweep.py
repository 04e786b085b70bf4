"""The sweep of ResNet-50 beside what was published, and what a sweep may not ask of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.analysis.comparison import Identity
from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Case, Optimizer
from dlperf_hpc.published import Published, published, select
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

ROWS = select(published(), {"model": ["resnet50-v1.5"]})


def identity(of: Case | Published, tags: tuple[str, ...]) -> tuple[object, ...]:
    named = Identity(of.framework, of.model, of.precision, of.batch_size, of.topology, tags)
    return named.matching(("framework", "tags"))


def test_it_has_every_published_case_and_no_other() -> None:
    cases = load_sweep(ROOT / "sweeps" / "resnet50.toml", registry()).cases
    wanted = {identity(row, row.options) for row in ROWS if row.metric == "samples_per_s"}
    assert len(cases) == len(wanted) == 48
    assert {identity(case, case.tags) for case in cases} == wanted
    for case in cases:
        assert (case.seq_len, case.option("image_size")) == (0, 224)
        usual = Optimizer("sgd", lr=0.256, beta1=0.875, weight_decay=2.0**-15, grad_clip=0.0)
        assert case.optimizer == usual
        # 1 281 167 images of ImageNet, 256 for each update, the rest of an epoch left out.
        epoch = 1_281_167 // 256
        assert (case.schedule.warmup, case.schedule.total) == (8 * epoch, 90 * epoch)


@pytest.mark.processes
def test_a_dry_run_prints_the_plan_without_torch() -> None:
    code = (
        "import sys; from dlperf_hpc.__main__ import main\n"
        "code = main(['sweep', 'resnet50', '--dry-run', '--cluster', 'slurm'])\n"
        "sys.exit(code or 10 * bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "48 cases x 7 repeats = 336 runs in 6 arrays" in done.stdout


@pytest.mark.parametrize(
    ("lines", "where", "says"),
    [
        ("seq_len = 128", "seq_len", "is given, but a sample of resnet50 is no sequence"),
        ("image_size = 100", "image_size", "100 is no multiple of 32: resnet50 makes 32 x 32"),
        ("image_size = 16", "case.image_size", "16 is invalid: write 32 or more"),
        ("image_size = 2048", "case.image_size", "2048 is invalid: write 1024 or less"),
        ("image_size = 32", "batch_size", "1 image of 32 x 32 is too few: batch normalisation"),
        ("image_size = 32\nbatch_size = 'max'", "batch_size", "1 image of 32 x 32 is too few"),
        ("label_smoothing = 1.0", "case.label_smoothing", "1.0 is invalid: write 0.99 or less"),
        ("dropout = 0.1", "dropout", "is no option of ddp or resnet50 (they have bind, bucket_mb"),
        ("checkpoint_activations = true", "checkpoint_activations", "is no option of ddp or"),
        ("data = 'real'\ndata_path = '/no/such'", "data_path", "'/no/such' does not exist"),
        ("data_path = '/no/such'", "data_path", "is given, but data is not 'real'"),
        ("framework = 'fsdp'", "model", "is trained by ddp and horovod-torch only, not by fsdp"),
        ("framework = 'deepspeed'", "model", "is trained by ddp and horovod-torch only, not by"),
        ("framework = 'tensorflow'", "model", "resnet50 is not written for tensorflow, which"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_job(
    tmp_path: Path, lines: str, where: str, says: str
) -> None:
    path = tmp_path / "some.toml"
    framework = "" if "framework" in lines else "framework = 'ddp'\n"
    batch = "" if "batch_size" in lines else "batch_size = 1\n"
    head = f"topologies = ['1n1g']\n[case]\n{batch}model = 'resnet50'\n"
    path.write_text(f"{head}{framework}{lines}\n")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, registry())
    (issue,) = refused.value.issues
    assert issue.where == where and says in issue.message


@pytest.mark.parametrize("name", ["resnet", "ResNet-50", "rn50", "resnet50_v1.5", "resnet50v1.5"])
def test_other_names_of_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "some.toml"
    case = f"[case]\nbatch_size = 1\nframework = 'ddp'\nmodel = '{name}'\n"
    path.write_text(f"topologies = ['1n1g']\n{case}")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, registry())
    (issue,) = refused.value.issues
    assert issue.hint == "write 'resnet50'"
