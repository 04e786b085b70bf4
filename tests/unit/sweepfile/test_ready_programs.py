"""The ready programs: each is read, and comes to the command that its own documents have."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.logs.formats import formats
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.sweepfile.programs import typed_command
from dlperf_hpc.train.registry import registry

FOLDER = ROOT / "programs"
# What a case of each must come to. Of 2n4g with tp = 2 there are 4 replicas, of which each has 3
# samples, 2 times in an optimizer step: 24. {scratch} and the ports are only known in a task.
COMMANDS = {
    "hf_trainer": (
        "python -m torch.distributed.run",
        "train.py --max_steps 130 --per_device_train_batch_size 3 --gradient_accumulation_steps 2"
        " --logging_steps 1 --output_dir {scratch} --save_strategy no --report_to none --bf16",
    ),
    "hf_trainer_accelerate": (
        "python -m accelerate.commands.launch",
        "--multi_gpu train.py --max_steps 130 --per_device_train_batch_size 3"
        " --gradient_accumulation_steps 2 --logging_steps 1 --output_dir {scratch} --save_strategy"
        " no --report_to none --bf16",
    ),
    "lightning": (
        "python -m torch.distributed.run",
        "main.py fit --trainer.devices 4 --trainer.num_nodes 2 --trainer.max_steps 130"
        " --trainer.accumulate_grad_batches 2 --trainer.callbacks TQDMProgressBar"
        " --trainer.callbacks.refresh_rate 1 --trainer.default_root_dir {scratch}"
        " --trainer.logger false --trainer.enable_checkpointing false --data.batch_size 3"
        " --trainer.precision bf16-mixed",
    ),
    "nanogpt": (
        "python -m torch.distributed.run",
        "train.py --dataset=openwebtext --n_layer=12 --n_head=12 --n_embd=768 --batch_size=3"
        " --block_size=64 --gradient_accumulation_steps=16 --max_iters=130 --log_interval=1"
        " --eval_interval=1000000 --eval_iters=1 --always_save_checkpoint=False"
        " --out_dir={scratch} --compile=True --dtype=bfloat16",
    ),
    "torchtitan": (
        "python -m torch.distributed.run",
        "--local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train --job.config_file"
        " ./torchtitan/models/llama3/train_configs/debug_model.toml --job.dump_folder {scratch}"
        " --training.steps 130 --training.seq_len 64 --training.local_batch_size 3"
        " --training.global_batch_size 24 --parallelism.tensor_parallel_degree 2"
        " --metrics.log_freq 10",
    ),
    "megatron": (
        "python -m torch.distributed.run",
        "pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length"
        " 64 --max-position-embeddings 64 --micro-batch-size 3 --global-batch-size 24 --train-iters"
        " 130 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --lr 0.00015 --min-lr"
        " 0.00001 --mock-data --tokenizer-type NullTokenizer --vocab-size 50257 --split 99,1,0"
        " --eval-iters 0 --log-interval 1 --log-throughput --bf16",
    ),
    "maxtext": (
        "python -m maxtext.trainers.pre_train.train",
        "run_name=dlperf base_output_directory={scratch} hardware=gpu model_name=default"
        " dataset_type=synthetic steps=130 per_device_batch_size=3 max_target_length=64"
        " gradient_accumulation_steps=2 enable_checkpointing=false dtype=bfloat16",
    ),
    "timm": (
        "python -m torch.distributed.run",
        "train.py --data-dir data --model resnet50 --batch-size 3 --grad-accum-steps 2 --epochs 1"
        " --log-interval 10 --output {scratch} --amp --amp-dtype bfloat16",
    ),
    "trl_sft": (
        "python -m accelerate.commands.launch",
        "--multi_gpu -m trl.scripts.sft --model_name_or_path Qwen/Qwen2-0.5B --dataset_name"
        " trl-lib/Capybara --max_length 64 --max_steps 130 --per_device_train_batch_size 3"
        " --gradient_accumulation_steps 2 --logging_steps 1 --output_dir {scratch} --save_strategy"
        " no --report_to none --bf16 True",
    ),
    "diffusers": (
        "python -m accelerate.commands.launch",
        "--multi_gpu train_unconditional.py --train_data_dir data --resolution 64"
        " --train_batch_size 3 --gradient_accumulation_steps 2 --num_epochs 1 --output_dir"
        " {scratch} --mixed_precision bf16",
    ),
    "mpi": ("./a.out", "130 1024"),
    "keras": ("python train.py", "--batch-size 12 --steps 130"),
}
OWN = {"torchtitan": "tp = 2\n", "megatron": "tp = 2\n"}


def test_each_ready_program_is_looked_at() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_ready_program_comes_to(tmp_path: Path, name: str) -> None:
    one = name == "keras"  # of one node, without accumulation
    spec = tmp_path / "sweep.toml"
    case = f'framework = "{name}"\nmodel = "toy"\nbatch_size = 3\nseq_len = 64\n'
    case += "" if one else 'precision = "bf16"\naccumulation = 2\n'
    topology = "1n4g" if one else "2n4g"
    spec.write_text(f'topologies = ["{topology}"]\n[case]\n{case}{OWN.get(name, "")}')
    known = [each.name for each in formats()]
    sweep = load_sweep(spec, registry(), formats=known, programs=[FOLDER])
    program, (made,) = sweep.programs[name], sweep.cases
    argv = typed_command(program, made, sweep.measure, ["python"]).argv
    begin, end = (shlex.split(text) for text in COMMANDS[name])
    assert list(argv[: len(begin)]) == begin
    assert list(argv[-len(end) :]) == end
    assert program.read.format in ([""] if name == "mpi" else known)
    # The reader gets the samples of an optimizer step from here.
    assert made.global_batch == (12 if one else 24 if "tp" in OWN.get(name, "") else 48)
