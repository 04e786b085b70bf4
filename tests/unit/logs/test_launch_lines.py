"""Nodes and devices by the command lines in a log; batches as programs and names spell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.names import facts_of_path
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.nccl import in_words

HOROVOD = [
    "Model: resnet50",
    "Batch size: 32",
    "Number of GPUs: {}",
    *[f"Iter #{n}: 100.0 img/sec per GPU" for n in range(10)],
    "Img/sec per GPU: 100.0 +-0.5",
]


STEPS = [
    f" iteration {n:8d}/     500 | consumed samples: {64 * n:12d} | elapsed time per iteration"
    f" (ms): 500.0 | learning rate: 1.500E-04 | global batch size:    64 | lm loss: 2.6E+00 |"
    for n in range(1, 131)
]


def read(tmp_path: Path, lines: list[str], **stated: int) -> RunResult:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    (result,) = gather([log], rule(), stated, ScanCache(None)).results
    return result


def horovod(devices: int) -> list[str]:
    total = f"Total img/sec on {devices} GPU(s): {100.0 * devices:.1f} +-1.0"
    return [line.format(devices) for line in HOROVOD] + [total]


@pytest.mark.parametrize(
    ("launch", "devices", "topology"),
    [
        ("+ torchrun --nproc_per_node 4 --nnodes 16 train.py --epochs 1", 64, "16n4g"),
        ("python -m torch.distributed.run --nnodes=16 --nproc-per-node=4 train.py", 64, "16n4g"),
        ("srun --nodes=2 --ntasks=2 python synthetic.py", 2, "2n1g"),
        ("srun -N 4 --ntasks-per-node=4 python synthetic.py", 16, "4n4g"),
        ("horovodrun -np 8 -H a01:4,a02:4 python synthetic.py", 8, "2n4g"),
        ("mpirun -np 4 -H a01:2,a02:2 -bind-to none python synthetic.py", 4, "2n2g"),
        ("deepspeed --num_nodes 4 --num_gpus 4 train.py", 16, "4n4g"),
        ("accelerate launch --num_machines 4 --num_processes 16 train.py", 16, "4n4g"),
        ("  min_nodes        : 2\n  max_nodes        : 2\n  nproc_per_node   : 4", 8, "2n4g"),
    ],
)
def test_a_launch_line_says_how_devices_lie_on_nodes(
    tmp_path: Path, launch: str, devices: int, topology: str
) -> None:
    result = read(tmp_path, [launch, *horovod(devices)])
    assert str(result.run.case.topology) == topology
    assert not any("--nodes" in warning for warning in result.warnings)


SAID = {
    # Open MPI (mpirun(1) of 4.1), Azure's recipes of nccl-tests
    "mpirun --np 16 -H a01:8,a02:8 -bind-to none python train.py": "2n8g",
    "mpirun --bind-to none --map-by slot -n 8 -H a01:4,a02:4 python train.py -n 3": "2n4g",
    "mpirun --allow-run-as-root -np 16 --map-by ppr:8:node -x NCCL_DEBUG=WARN python t.py": "2n8g",
    "/opt/ompi/bin/mpirun -np 16 --hostfile hosts -npernode 8 python train.py": "2n8g",
    "mpirun -np 2 -H a01:1,a02:1 torchrun --nnodes 2 --nproc_per_node 8 train.py": "2n8g",
    # MPICH and Intel MPI, as Argonne's users start PyTorch
    "mpiexec -n 16 --ppn 4 --depth 8 --cpu-bind depth python -m diffgenslm.train": "4n4g",
    "mpiexec.hydra -n 16 -ppn 8 -f hostfile python train.py": "2n8g",
    "mpirun -n 16 -perhost 8 -hosts a01,a02 python train.py": "2n8g",
    # srun(1)
    "srun -N2 -n16 python train.py": "2n8g",
    "+ srun -l -N 4 --ntasks-per-node=8 --gres=gpu:8 python train.py --nodes 2": "4n8g",
    "srun --nodes=2 --ntasks=16 --cpus-per-task=8 python train.py": "2n8g",
    "srun -N 2 --ntasks-per-node=1 bash -c 'torchrun --nproc_per_node=8 train.py'": "2n8g",
    "srun --nodes=4 python -m torch.distributed.run --nproc_per_node=4 train.py": "4n4g",
    # torchrun's documents
    "torchrun --nnodes=2:2 --nproc-per-node=8 train.py": "2n8g",
    "+ torchrun '--nproc_per_node=8' train.py": "1n8g",
    "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 t.py --nnodes 9": "2n8g",
    # accelerate's and DeepSpeed's
    "accelerate launch --multi_gpu --num_processes=16 --num_machines=2 -m axolotl.cli": "2n8g",
    "deepspeed --include=worker-0:0,1,2,3@worker-1:0,1,2,3 train.py": "2n4g",
    "deepspeed --num_gpus=8 --num_nodes=2 train.py --deepspeed ds.json": "2n8g",
    "horovodrun --num-proc 8 --hosts a01:4,a02:4 python train.py": "2n4g",
    # Summit's jsrun, as in a script of ignatovmg's; Theta's aprun
    "jsrun -n 270 -r 6 -a 1 -g 1 -c 4 python train.py": "45n6g",
    "jsrun -n2 -r1 -a1 -g6 -c42 python train.py": "2n6g",
    "aprun -n 20 -N 4 -d 2 python train.py": "5n4g",
}


@pytest.mark.parametrize(("launch", "topology"), SAID.items(), ids=map(str, range(len(SAID))))
def test_the_launcher_s_own_options_count(tmp_path: Path, launch: str, topology: str) -> None:
    """The program says nothing of devices (BERT's lines of Megatron-LM)."""
    result = read(tmp_path, [launch, *STEPS])
    assert str(result.run.case.topology) == topology
    assert not any("--nodes" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    "launch",
    [
        "mpirun -np 16 --hostfile hosts python train.py",
        "mpirun -np $NP -H a01:8,a02:8 python train.py",
        "mpirun -np 16 -hosts a01,a02 python train.py",
        "mpirun -np 4 -ppn 8 python train.py",
        "mpirun -np 2 -H a01:1,a02:1 python train.py",
        "srun -N 2-4 -n 16 python train.py",
        "srun -n 16 python train.py",
        "torchrun --nnodes=1:4 --nproc_per_node=8 train.py",
        "torchrun --nproc_per_node=8 \\",
        "torchrun --standalone --nproc_per_node=gpu train.py",
        "  min_nodes        : 1\n  max_nodes        : 4\n  nproc_per_node   : 8",
        "accelerate launch --num_processes 8 train.py",
        "deepspeed --hostfile=hosts train.py",
        "horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script ./d.sh python train.py",
        "jsrun -n 12 -a 1 -g 1 python train.py",
    ],
)
def test_a_topology_that_no_line_says_is_not_known(tmp_path: Path, launch: str) -> None:
    log = tmp_path / "run.log"
    log.write_text("\n".join([launch, *STEPS]) + "\n")
    with pytest.raises(LedgerError, match="--nodes"):
        gather([log], rule(), {}, ScanCache(None))


SPLIT = """torchrun --nnodes 1 --nproc_per_node 8 train.py
  Instantaneous batch size per device = 4
  Total train batch size (w. parallel, distributed & accumulation) = 8
  Gradient Accumulation steps = 2
{'train_runtime': 100.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': 8.0, 'epoch': 1.0}
""".splitlines()  # noqa: E501 - one line


def test_copies_of_a_model_that_is_split_are_no_devices(tmp_path: Path) -> None:
    """Trainer.get_total_train_batch_size of transformers 5 divides the processes by tp_size: eight
    devices with one copy of the model between them were 1n1g."""
    result = read(tmp_path, SPLIT)
    assert (str(result.run.case.topology), result.run.case.batch_size) == ("1n8g", 4)
    assert result.samples_per_s == pytest.approx(64.0)
    assert any("1 copies of the model, on 8 devices" in warning for warning in result.warnings)
    # By the user, where the log has no command line that says it, and by nobody.
    assert str(read(tmp_path, SPLIT[1:], nodes=1, gpus_per_node=8).run.case.topology) == "1n8g"
    assert str(read(tmp_path, SPLIT[1:]).run.case.topology) == "1n1g"
    with pytest.raises(LedgerError, match="--nodes"):
        read(tmp_path, ["train.py --tp_size 8", *SPLIT[1:]])
    elastic = "torchrun --nnodes 1:4 --nproc_per_node 8 train.py"
    with pytest.raises(LedgerError, match="--nodes"):
        read(tmp_path, [elastic, *SPLIT[1:]])


@pytest.mark.parametrize(
    "launch",
    [
        "torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS train.py",
        "torchrun --nnodes 1:4 train.py",
        "srun --nodes=3 --ntasks=3 hostname",
        "srun --nodes=1-4 python train.py",
        "mpirun -np 3 -H a01:2,a02:2 python synthetic.py",
        "mpirun -np 8 python synthetic.py",
    ],
)
def test_what_a_launch_line_does_not_say_is_not_taken(tmp_path: Path, launch: str) -> None:
    result = read(tmp_path, [launch, *horovod(16)])
    assert str(result.run.case.topology) == "2n8g"
    assert any("are taken for 2n8g (--nodes)" in warning for warning in result.warnings)


def test_a_launch_line_that_contradicts_the_program_is_told(tmp_path: Path) -> None:
    result = read(tmp_path, ["torchrun --nnodes 2 --nproc_per_node 4 train.py", *horovod(16)])
    assert result.run.case.topology.devices == 16
    assert any(
        "16 devices" in warning and "8 (nodes x GPUs" in warning for warning in result.warnings
    )


def test_a_launch_line_by_itself_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("torchrun --nnodes 2 --nproc_per_node 4 train.py\n")
    (tmp_path / "other.log").write_text("\n".join(horovod(4)) + "\n")
    found = gather([tmp_path], rule(), {}, ScanCache(None))
    assert found.unrecognised == (str(log),) and len(found.results) == 1


def test_the_batch_on_a_command_line(tmp_path: Path) -> None:
    launch = "torchrun --nnodes 1 --nproc_per_node 4 run_glue.py --per_device_train_batch_size 16"
    end = (
        "{'train_runtime': 100.0, 'train_samples_per_second': 64.0, "
        "'train_steps_per_second': 1.0, 'epoch': 1.0}"
    )
    result = read(tmp_path, [launch, end])
    assert (result.run.case.batch_size, str(result.run.case.topology)) == (16, "1n4g")


def test_the_accumulation_on_a_command_line_of_several_lines(tmp_path: Path) -> None:
    lines = ["swift sft \\", "--per_device_train_batch_size 2 \\"]
    lines += ["--gradient_accumulation_steps 16 \\", "--gradient_accumulation_steps_of_mine 3"]
    loss = "{{'loss': 1.2, 'train_speed(iter/s)': 0.5, 'global_step/max_steps': '{}/500'}}"
    result = read(tmp_path, [*lines, *map(loss.format, range(1, 130))], nodes=1, gpus_per_node=1)
    assert result.run.case.accumulation == 16
    assert result.samples_per_s == pytest.approx(2 * 16 * 0.5)


def test_a_batch_that_a_name_spells() -> None:
    facts = facts_of_path("/logs/bert_fp16_4n8g_globalBatchSize-64.log")
    assert ("global_batch", 64) in [(fact.name, fact.value) for fact in facts]


def test_hugectr_s_own_batch_and_total(tmp_path: Path) -> None:
    """Its issue 186: 'Finish 1200 iterations with batchsize: 65536 in 879.05s.'"""
    head = "[HUGECTR][02:51:00][INFO][RANK0]: "
    lines = [
        f"{head}Training batchsize: 65536, evaluation batchsize: 65536",
        *[
            f"[HUGECTR][02:51:{n:02d}][INFO][RANK0]: Iter: {100 * n} Time(100 iters): 1.000000s"
            " Loss: 0.13 lr:0.001"
            for n in range(1, 13)
        ],
        f"{head}Finish 1200 iterations with batchsize: 65536 in 13.50s.",
    ]
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    stated = {"nodes": 1, "gpus_per_node": 8}
    (result,) = gather([log], rule(), stated, ScanCache(None)).results
    assert result.samples_per_s == pytest.approx(6553600.0)
    (total,) = gather([log], rule("total"), stated, ScanCache(None)).results
    assert total.samples_per_s == pytest.approx(1200 * 65536 / 13.5)
    assert any("over those by total" in warning for warning in total.warnings)


def test_nccls_own_lines_tell_which_way_its_ranks_talked(tmp_path: Path) -> None:
    launch = "horovodrun -np 4 -H a01:2,a02:2 python synthetic.py"
    row = "{}:9:9 [0] NCCL INFO Channel 00/0 : {} -> {} {}via {}".format
    nccl = [
        row("a01", "0[0]", "1[1]", "", "P2P/IPC"),
        row("a01", "1[1]", "2[0]", "[send] ", "NET/Socket/0"),
        row("a02", "1[1]", "2[0]", "[receive] ", "NET/Socket/0"),
    ]
    result = read(tmp_path, [launch, *nccl, *horovod(4)])
    assert in_words(result.facts) == "P2P/IPC within nodes, NET/Socket between nodes"
    assert "nccl" not in read(tmp_path, [launch, *horovod(4)]).facts
    # They are looked for until the first step, in the first MiB.
    noise = ["a line that says nothing at all of anything"] * 8000  # 350 kB
    assert "nccl" in read(tmp_path, [launch, *noise, *nccl, *horovod(4)]).facts
    assert "nccl" not in read(tmp_path, [launch, *horovod(4), *noise, *nccl]).facts
    assert "nccl" not in read(tmp_path, [launch, *noise * 3, *nccl, *horovod(4)]).facts


@pytest.mark.parametrize(
    ("stamp", "line"),
    [
        ("[HUGECTR][02:51:{:02.0f}][INFO][RANK0]: ", "Iter: {0} Time(10 iters): 0.20s Loss: 0.1"),
        (
            " [2026-01-05 10:49:{:02.0f}]",
            STEPS[0].replace("       1/", "{0:8d}/").replace("          64", "{1:12d}"),
        ),
    ],
)
def test_stamps_of_whole_seconds_measure_no_window_of_two(
    tmp_path: Path, stamp: str, line: str
) -> None:
    """50 and 2 iterations/s: what the lines print counts, and the clock's resolution is told."""
    text = line.replace("500.0", " 20.0")
    lines = [stamp.format(n / 50 // 1) + text.format(n, 64 * n) for n in range(10, 131, 10)]
    result = read(tmp_path, lines, nodes=1, gpus_per_node=8, batch_size=8)
    assert result.external is not None and result.external.basis == "printed"
    assert result.samples_per_s == pytest.approx(64 * 50)
    assert result.external.check is None
    assert any("whole seconds and the window is 2 s" in each for each in result.warnings)
