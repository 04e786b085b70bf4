"""Users' programs in a sweep file: what is refused, and what their tables come to."""

from __future__ import annotations

import textwrap
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Measure, Run, Topology
from dlperf_hpc.records.forms import program_of
from dlperf_hpc.sweepfile.expressions import ExpressionError, holds, whole
from dlperf_hpc.sweepfile.keys import KEYS
from dlperf_hpc.sweepfile.load import Sweep, load_sweep
from dlperf_hpc.sweepfile.programs import (
    CASE_NAMES,
    UserProgram,
    child_argv,
    command,
    plan_values,
    typed_command,
)
from dlperf_hpc.sweepfile.programtables import read_program
from dlperf_hpc.train.registry import registry

HEAD = """
topologies = ["1n2g", "2n2g"]
repeats = 1
[measure]
warmup = 3
iterations = 10
[case]
framework = "mine"
model = "toy"
batch_size = 4
"""
MINE = """
[program.mine]
launch = "torchrun"
run = ["train.py", "--tp={tp}", "--gbs", "{global_batch}", "--steps", "{steps}", "{*precision}"]
replicas = "devices // tp"
require = ["devices % tp == 0"]
env = { WHO = "{{{rank}}}" }
[program.mine.keys]
tp = 1
[program.mine.words]
precision = { fp32 = [], bf16 = ["--dtype", "bf16"] }
[program.mine.read]
format = "megatron"
"""


def loaded(place: Path, text: str, **kw: Any) -> Sweep:
    path = place / "sweep.toml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return load_sweep(path, registry(), formats=["megatron"], **kw)


def refused(place: Path, text: str, **kw: Any) -> str:
    with pytest.raises(SpecError) as told:
        loaded(place, text, **kw)
    return str(told.value)


VALUES = {"devices": 8, "tp": 3, "lr": 0.1, "name": "x", "optimizer.lr": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [("devices // tp", 2), ("-(devices - 2) * tp", -18), ("devices % tp", 2), ("8 / 2", 4)],
)
def test_expressions(text: str, value: int) -> None:
    assert whole(text, VALUES) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices / tp", "8 / 3, which is not whole"),
        ("devices // 0", "divides 8 by 0"),
        ("lr * 2", "lr is 0.1"),
        ("nobody", "nobody is not given"),
        ("2 ** 99", "is no expression"),
        ("__import__('os')", "is no expression"),
        ("devices.__class__", "devices.__class__ is not given"),
        ("9223372036854775807 * 8", "above 2**63"),
        ("devices == 8", "is a condition"),
        ("(" * 150, "is no expression"),
        ("1+" * 150 + "1", "more than 200 characters"),
    ],
)
def test_what_is_no_whole_number(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as told:
        whole(text, VALUES)
    assert words in str(told.value)


def test_conditions() -> None:
    assert holds("2 <= tp < devices", VALUES) and not holds("devices % tp == 0", VALUES)
    with pytest.raises(ExpressionError, match="compares nothing"):
        holds("devices", VALUES)


def test_every_key_of_a_case_is_a_placeholder() -> None:
    # A mode is a back end's; a program may have a key of that name, which is its own.
    assert {*CASE_NAMES, "processes_per_node", "mode"} == {*KEYS}


def test_a_program_joins_the_matrix(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, HEAD + "[matrix]\ntp = [1, 2, 4]\n" + MINE)
    assert [(case.id.rpartition("/")[2], str(case.topology)) for case in sweep.cases] == [
        *(("toy_b4_fp32", topology) for topology in ("1n2g", "2n2g")),
        *(("toy_b4_fp32-tp2", topology) for topology in ("1n2g", "2n2g")),
        ("toy_b4_fp32-tp4", "2n2g"),
    ]
    assert sweep.notes == ("program.mine.require: devices % tp == 0 leaves out 1 case (1n2g)",)
    last = sweep.cases[-1]
    assert (last.replicas, last.global_batch, last.ranks, last.launch) == (1, 4, 2, "torchrun")
    values = plan_values(last, sweep.measure, sweep.name, Run(last, 2))
    made = command(sweep.programs["mine"], {**values, "rank": 7})
    assert made.argv == ("train.py", "--tp=4", "--gbs", "4", "--steps", "23")
    assert made.env == {"WHO": "{7}"}


def test_a_global_batch_is_spread_over_replicas(tmp_path: Path) -> None:
    text = HEAD + "global_batch = 16\ntp = 2\n" + MINE
    assert [case.accumulation for case in loaded(tmp_path, text).cases] == [4, 2]
    told = refused(tmp_path, text.replace("16", "12"))
    assert "12 does not divide by 8 = batch_size 4 x 2 replicas of 2n2g" in told


def test_beside_a_back_end(tmp_path: Path) -> None:
    text = HEAD.replace('framework = "mine"\n', "").replace('"toy"', '"bert-tiny"')
    sweep = loaded(tmp_path, text + '[matrix]\nframework = ["ddp", "mine"]\n' + MINE)
    assert [(case.framework, case.seq_len, case.launch) for case in sweep.cases[::2]] == [
        ("ddp", 64, ""),
        ("mine", 0, "torchrun"),
    ]
    told = refused(tmp_path, HEAD.replace('"mine"', '"ddp"') + MINE)
    assert "there is no model 'toy'" in told


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("{steps}", "{stepps}", "program.mine.run[5]: there is no placeholder 'stepps' (did you"),
        ("launch =", "lunch =", "program.mine.lunch: unknown key 'lunch' (did you mean 'launch'?)"),
        ('"torchrun"', '"torchrum"', "there is no launch 'torchrum' (did you mean 'torchrun'?)"),
        ('"megatron"', '"megatrom"', "there is no log format 'megatrom' (did you mean"),
        ("devices // tp", "devices / 3", "program.mine.replicas: 'devices / 3' is 2 / 3, which"),
        ("{tp}", "{model * 2}", "program.mine.run[1]: model is 'toy', and one computes with"),
        ("{tp}", "{seq_len}{tp}", "program.mine.run[1]: seq_len is not given"),
        ("{tp}", "{tp", "a lone '{'"),
        ("{*precision}", "{*precisions}", "{*precisions} has no words"),
        ("fp32 = [], ", "", "words.precision: precision 'fp32' has no words (there are: bf16)"),
        ("tp = 1", "tp = 1\nother = 2", "program.mine.keys.other: is used nowhere"),
        ("tp = 1", "rank = 1", "rank is a key or a placeholder of every program"),
        ("tp", "dropout", "dropout is a float elsewhere, and here 1"),
        ("devices % tp", "rank % tp", "only a task knows rank"),
        ("program.mine", "program.ddp", "'ddp' is a back end of dlperf_hpc: two programs of one"),
    ],
)
def test_what_is_told_before_submission(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    assert before in MINE
    assert words in refused(tmp_path, HEAD + MINE.replace(before, after))


def test_our_type_of_a_key_counts_for_every_program(tmp_path: Path) -> None:
    wrong = MINE.replace("tp", "dropout")
    right = wrong.replace("program.mine", "program.other").replace("dropout = 1", "dropout = 0.5")
    told = refused(tmp_path, HEAD + wrong + right)
    assert "dropout is a float elsewhere, and here 1" in told and "is a int elsewhere" not in told


def test_two_cases_with_one_command(tmp_path: Path) -> None:
    told = refused(tmp_path, HEAD + "[matrix]\nseed = [1, 2]\n" + MINE)
    assert "start the same command: it would be measured twice" in told


def test_a_program_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    table = '\nlaunch = "node"\nrun = ["bash", "run.sh", "{nodes} {devices};", "{topology}"]\n'
    (tmp_path / "programs" / "mine.toml").write_text(table)
    sweep = loaded(tmp_path, HEAD)
    program = sweep.programs["mine"]
    shown = typed_command(program, sweep.cases[1], sweep.measure, ["box", "exec", "python"])
    assert shown.argv == ("box", "exec", "bash", "run.sh", "2 4;", "2n2g")
    told = refused(tmp_path, HEAD + MINE)
    assert "two programs of one name" in told and "programs/mine.toml" in told


def test_programs_are_sought_in_several_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "programs", "shipped")]
    for folder in folders:
        folder.mkdir()
        (folder / "mine.toml").write_text(
            f'launch = "rank"\nrun = ["{folder.name}", "{{model}}"]\n'
        )
    assert "there is no framework 'mine'" in refused(tmp_path, HEAD, programs=[])
    for folder in folders:
        assert loaded(tmp_path, HEAD, programs=folders).programs["mine"].run[0] == folder.name
        (folder / "mine.toml").unlink()
    (folders[2] / "mine.toml").write_text('launch = "rank"\nrun = ["x", "{nods}"]\n')
    told = refused(tmp_path, HEAD, programs=folders)
    assert f"{folders[2]}/mine.toml: run[1]: there is no placeholder 'nods' (did you mean" in told
    # A sweep's own table comes before a file that is elsewhere, and one that is ready.
    assert loaded(tmp_path, HEAD + MINE, programs=folders).programs["mine"].run[0] == "train.py"
    (folders[2] / "mine.toml").rename(folders[2] / "mime.toml")
    told = refused(tmp_path, HEAD, programs=folders)
    assert "there is no framework 'mine' (did you mean 'mime'?)" in told


def test_torchrun_gets_its_rendezvous(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, HEAD + MINE)
    argv = typed_command(sweep.programs["mine"], sweep.cases[1], Measure(), ["py"]).argv
    assert " ".join(argv).startswith(
        "py -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank {node_rank}"
        " --master-addr {master_addr} --master-port {master_port} --max-restarts 0 train.py"
    )
    binary = UserProgram("x", "torchrun", ("./a.out",))
    values = {"nodes": 1, "gpus_per_node": 1, "node_rank": 0, "master_addr": "a", "master_port": 1}
    assert child_argv(binary, binary.run, values, ["py"])[-2:] == ("--no-python", "./a.out")


def test_accelerate_is_told_what_people_forget(tmp_path: Path) -> None:
    text = (HEAD + MINE).replace('"torchrun"', '"accelerate"')
    sweep = loaded(tmp_path, text)
    program, case = sweep.programs["mine"], sweep.cases[1]
    assert str(case.topology) == "2n2g"
    argv = " ".join(typed_command(program, case, Measure(), ["box", "py"]).argv)
    assert argv.startswith(
        "box py -m accelerate.commands.launch --num_machines 2 --machine_rank {node_rank}"
        " --num_processes 4 --main_process_ip {master_addr} --main_process_port {master_port}"
        " --mixed_precision no --dynamo_backend no --multi_gpu train.py "
    )
    own = replace(program, run=("--use_fsdp", *program.run))
    argv = " ".join(typed_command(own, case, Measure(), ["py"]).argv)
    assert " --dynamo_backend no --use_fsdp train.py " in argv
    alone = replace(case, topology=Topology(1, 1), device="cpu", precision="bf16")
    argv = " ".join(typed_command(program, alone, Measure(), ["py"]).argv)
    assert " --num_processes 1 " in argv and " --mixed_precision bf16 " in argv
    assert " --dynamo_backend no --cpu train.py " in argv


def test_a_table_is_read_back_as_it_was(tmp_path: Path) -> None:
    program = loaded(tmp_path, HEAD + MINE).programs["mine"]
    assert program_of("mine", program.to_dict()) == program
    assert read_program("mine", program.to_dict()) == (program, [])
    program = replace(program, local_rank="visible")
    assert {*program.to_dict()} == {f.name for f in fields(program)} - {"name", "format"} | {"read"}


def test_a_local_rank_counts_gpus_of_processes_that_the_launcher_starts(tmp_path: Path) -> None:
    """A table without the key stays what it was, to the last letter."""
    table: dict[str, Any] = {"launch": "rank", "run": ["train.py"]}
    plain, _ = read_program("mine", table)
    assert plain is not None and "local_rank" not in plain.to_dict()
    seen, _ = read_program("mine", {**table, "local_rank": "visible"})
    assert seen is not None and program_of("mine", seen.to_dict()) == seen
    assert seen.local_rank == "visible" and program_of("mine", plain.to_dict()) == plain
    for wrong, where in (({"local_rank": "gpu"}, "local_rank"), ({"launch": "torchrun"}, "launch")):
        _, issues = read_program("mine", {**table, "local_rank": "visible", **wrong})
        assert issues and (issues[0].where == "local_rank"), (where, issues)
