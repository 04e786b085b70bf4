"""``dlperf sweep`` as a user meets it; dry runs need no Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from spec_samples import load, write

from dlperf_hpc.cli import sweep as verb
from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Site
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import write_manifest

TOP = 'topologies = ["1n1g", "1n2g", "2n2g"]\nrepeats = 2\ntime_limit = "10:00"'
TABLES = '[matrix]\nprecision = ["fp32", "bf16"]'


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DLPERF_SITE", raising=False)
    return write(tmp_path, top=TOP, tables=TABLES)


def sweep(spec: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), *arguments]
    env = {key: value for key, value in os.environ.items() if not key.startswith("DLPERF_")}
    return subprocess.run(
        argv, cwd=spec.parent, env=env, capture_output=True, text=True, timeout=60, check=False
    )


class Ran:
    """One call in this process: what it returned and printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], spec: Path, *arguments: str) -> None:
        self.code = verb.main([str(spec), "--dry-run", *arguments])
        self.out, self.err = capsys.readouterr()

    @property
    def arrays(self) -> dict[str, list[str]]:
        return {row["array"]: row["runs"] for row in json.loads(self.out)["arrays"]}


def test_a_dry_run_for_slurm_prints_plan_and_scripts_and_writes_nothing(spec: Path) -> None:
    before = sorted(spec.parent.rglob("*"))
    done = sweep(spec, "--dry-run", "--cluster", "slurm")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:7] == [
        "sweep sample (slurm): 6 cases x 2 repeats = 12 runs in 3 arrays, at most 2.67 node-hours",
        f"logs: {spec.parent}/logs/sample",
        "",
        "array        topology  cases  runs  limit/run  node-hours <=",
        "1n1g.sample  1n1g      2      4     10 min     0.67",
        "1n2g.sample  1n2g      2      4     10 min     0.67",
        "2n2g.sample  2n2g      2      4     10 min     1.33",
    ]
    for name in ("1n1g.sample", "1n2g.sample", "2n2g.sample"):
        assert f"\n===== {name}: the batch script\n#!/bin/bash\n" in done.stdout
    assert sorted(spec.parent.rglob("*")) == before


def test_a_spec_error_is_a_message_and_exit_code_2(spec: Path) -> None:
    spec.write_text(spec.read_text().replace("batch_size = 8", 'batch_size = 0\nbtch_size = "x"'))
    done = sweep(spec, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {spec}: 2 errors",
        "  case.batch_size: 0 is invalid: write 1 or more",
        "  case.btch_size: unknown key 'btch_size' (did you mean 'batch_size'?)",
    ]


def test_usage_errors_are_exit_code_2(spec: Path) -> None:
    done = sweep(spec, "--cluster", "pbs")
    assert done.returncode == 2 and "--cluster: there is no 'pbs' (there are: auto, " in done.stderr
    done = sweep(spec.with_name("none.toml"))
    assert done.returncode == 2 and "there is no such file" in done.stderr


def test_the_login_node_needs_no_framework(spec: Path) -> None:
    heavy = "{'torch', 'numpy', 'mpi4py', 'pandas', 'matplotlib', 'tensorflow'}"
    code = (
        "import sys; from dlperf_hpc.cli import sweep;"
        f"code = sweep.main(['{spec}', '--dry-run', '--cluster', 'slurm', '--json']);"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_json_has_every_run_and_script(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, spec, "--cluster", "slurm", "--json")
    plan = json.loads(ran.out)
    assert (ran.code, plan["sweep"], plan["root"]) == (0, "sample", f"{spec.parent}/logs/sample")
    row = plan["arrays"][2]
    assert (row["array"], row["topology"], row["time_limit_s"]) == ("2n2g.sample", "2n2g", 600)
    assert row["runs"][0] == "ddp/bert-tiny/bz8/2n2g/bert-tiny_b8_fp32_1"
    assert row["script"].startswith("#!/bin/bash") and row["node_hours"] == pytest.approx(4 / 3)


def test_a_local_dry_run_is_one_queue_and_warns_of_more_nodes(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, spec, "--cluster", "local")
    assert ran.code == 0
    assert "= 12 runs one after another" in ran.out
    assert "1n2g.sample  1n2g      2      4     10 min" in ran.out
    assert "note: 2n2g: more than one node, which the local engine refuses" in ran.out
    assert "batch script" not in ran.out


@pytest.mark.parametrize(
    ("only", "arrays", "runs"),
    [
        (["1n1g"], ["1n1g.sample"], 4),
        (["1n1g,2n2g"], ["1n1g.sample", "2n2g.sample"], 8),
        (["1n1g", "precision=bf16"], ["1n1g.sample"], 2),
        (["topology=2n2g"], ["2n2g.sample"], 4),
        (["compile=false", "optimizer.lr=1e-4", "dropout=0.1"], None, 12),
        (["framework=ddp", "batch_size=8"], None, 12),
    ],
)
def test_only(
    spec: Path,
    capsys: pytest.CaptureFixture[str],
    only: list[str],
    arrays: list[str] | None,
    runs: int,
) -> None:
    words = [word for item in only for word in ("--only", item)]
    ran = Ran(capsys, spec, "--cluster", "slurm", "--json", *words)
    assert ran.code == 0
    assert list(ran.arrays) == (arrays or ["1n1g.sample", "1n2g.sample", "2n2g.sample"])
    assert sum(map(len, ran.arrays.values())) == runs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "1n1g,1n2"], "the sweep has no topology '1n2' (did you mean '1n2g'?)"),
        (["--only", "8n8g"], "the sweep has no topology '8n8g' (there are: 1n1g, 1n2g, 2n2g"),
        (["--only", "precision"], "the sweep has no topology 'precision'"),
        (["--only", "precison=fp32"], "no case has a key 'precison' (did you mean 'precision'?)"),
        (["--only", "precision=fp16"], "no case is left (there are: fp32, bf16)"),
        (
            ["--only", "precision=fp32", "--only", "precision=bf16"],
            "no case is left (there are: fp3",
        ),
        (["--only", "=3"], "(write key=value)"),
        (["--set", "batch_size"], "--set batch_size: there is no `=` (write key=value)"),
        (["--set", "bacth_size=3"], "unknown key 'bacth_size' (did you mean 'batch_size'?)"),
        (["--set", "batch_size=x"], 'case.batch_size: "x" is invalid'),
        (["--set", "measure.warmpu=3"], "measure.warmpu: unknown key 'warmpu' (did you mean 'warm"),
        (["--set", "topologies=1n1g,4g"], "topologies[1]: '4g' is not a topology"),
        (["--name", "a/b"], 'name: "a/b" is invalid: write at most 64 letters'),
        (["--name", ""], 'name: "" is invalid'),
        (["--site", "nowhere"], "no site profile 'nowhere' in slurm/"),
        (["--set", "environment=torch"], "a case names 'torch', which the profile does not have"),
    ],
)
def test_what_the_command_line_is_refused_with(
    spec: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    ran = Ran(capsys, spec, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ") and said in ran.err


@pytest.mark.parametrize(
    ("setting", "run"),
    [
        ("precision=fp16", "bz8/1n1g/bert-tiny_b8_fp16_1"),
        ('precision="fp16"', "bz8/1n1g/bert-tiny_b8_fp16_1"),
        ("batch_size=4", "bz4/1n1g/bert-tiny_b4_fp32_1"),
        ("batch_size = 4", "bz4/1n1g/bert-tiny_b4_fp32_1"),
        ("batch_size=[4, 2]", "bz4/1n1g/bert-tiny_b4_fp32_1"),
        ("optimizer.lr=1e-5", "bz8/1n1g/bert-tiny_b8_fp32-lr1e-05_1"),
        ("compile=true", "bz8/1n1g/bert-tiny_b8_fp32-compile_1"),
        ("dropout=0", "bz8/1n1g/bert-tiny_b8_fp32-dropout0_1"),
        ("global_batch=64", "bz8/1n1g/bert-tiny_b8_fp32-gbs64_1"),
    ],
)
def test_set_of_a_case_key(
    spec: Path, capsys: pytest.CaptureFixture[str], setting: str, run: str
) -> None:
    ran = Ran(capsys, spec, "--cluster", "slurm", "--json", "--set", setting)
    assert (ran.code, ran.err) == (0, "")
    assert ran.arrays["1n1g.sample"][0] == f"ddp/bert-tiny/{run}"


def test_set_of_the_files_other_keys(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["topologies=1n1g,2n2g", "repeats=1", "time_limit=00:02:00", "name=other"]
    words = [word for setting in settings for word in ("--set", setting)]
    ran = Ran(capsys, spec, "--cluster", "slurm", *words)
    assert ran.out.splitlines()[0].startswith("sweep other (slurm): 4 cases x 1 repeat = 4 runs")
    assert "2n2g.other  2n2g      2      2     2 min      0.13" in ran.out
    ran = Ran(capsys, spec, "--cluster", "slurm", "--set", "time_limit.1n1g=00:02:00")
    assert "1n1g.sample  1n1g      2      4     2 min" in ran.out
    assert "1n2g.sample  1n2g      2      4     10 min" in ran.out


def test_the_name_of_the_command_line_wins(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, spec, "--name", "again", "--logs", "elsewhere", "--cluster", "slurm")
    assert f"logs: {spec.parent}/elsewhere/again" in ran.out
    assert "#SBATCH --job-name=1n1g.again" in ran.out


def test_what_is_odd_is_noted(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(spec.read_text() + "\n[[exclude]]\nbatch_size = 9\n")
    ran = Ran(capsys, spec, "--cluster", "slurm")
    assert (ran.code, ran.err) == (0, f"note: {spec}: exclude[0] matches no case\n")


def test_a_site_profile_shapes_the_scripts(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec.parent / "slurm").mkdir()
    (spec.parent / "slurm" / "mine.toml").write_text('partition = "p9"')
    assert "--partition=p9" in Ran(capsys, spec, "--cluster", "slurm", "--site", "mine").out
    spec.write_text('site = "mine"\n' + spec.read_text())
    assert "--partition=p9" in Ran(capsys, spec, "--cluster", "slurm").out
    monkeypatch.setenv("DLPERF_SITE", "nowhere")
    assert "--partition=p9" in Ran(capsys, spec, "--cluster", "slurm").out


def test_a_dry_run_tells_what_would_be_added(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--only", "1n1g", "--set", "repeats=1")
    root = spec.parent / "logs" / "sample"
    root.mkdir(parents=True)
    sample = replace(load(spec), repeats=1)
    sample = replace(sample, cases=tuple(c for c in sample.cases if str(c.topology) == "1n1g"))
    write_manifest(root, make_manifest(sample, Site(), "slurm"))
    before = (root / layout.MANIFEST).read_bytes()

    slurm = ("--cluster", "slurm")
    told = "there is this sweep, with 2 of these 12 runs: 10 would be added, as new arrays\n"
    assert told in Ran(capsys, spec, *slurm).out
    assert (
        "there are all of these 2 runs: nothing would be added"
        in Ran(capsys, spec, *slurm, *small).out
    )
    other = Ran(capsys, spec, *slurm, "--set", "measure.warmup=4")
    assert other.code == 0 and "the command would be refused:" in other.out
    assert "\n  measure.warmup: there 20, here 4\n" in other.out
    plan = json.loads(Ran(capsys, spec, *slurm, "--json").out)
    assert plan["directory"] == {"there": 2, "added": 10, "differences": []}
    assert (root / layout.MANIFEST).read_bytes() == before
    (root / layout.MANIFEST).write_text("{")
    damaged = Ran(capsys, spec, *slurm)
    assert damaged.code == 0 and f"note: {root / layout.MANIFEST}: damaged" in damaged.err
