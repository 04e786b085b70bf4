"""Made-up logs of many frameworks for ``scan_logs.py``: few figures amid noise, or figures only.

What each file holds is known: the name of its format, and how many of its lines have a speed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Printer = Callable[[int, random.Random], str]

PRINTERS: dict[str, Printer] = {
    "deepspeed": lambda n, r: (
        f"{_stamp(n)} [INFO] [timer.py:157:stop] 0/{n}, SamplesPerSec={r.uniform(990, 1010)!r}"
    ),
    "megatron": lambda n, r: (
        f" iteration {n:8d}/  500000 | consumed samples: {n * 64:12d} |"
        f" elapsed time per iteration (ms): {r.uniform(400, 420):.1f} |"
        f" learning rate: {1.5e-4:.3E} | global batch size: {64:5d} | lm loss: {_loss(n):.6E} |"
        " loss scale: 65536.0 | number of skipped iterations:   0 |"
    ),
    "nemo": lambda n, r: (
        f"Training epoch 0, iteration {n - 1}/499999 | lr: 0.00015 | global_batch_size: 64"
        f" | global_step: {n - 1} | reduced_train_loss: {_loss(n):.4}"
        f" | train_step_timing in s: {r.uniform(1.5, 1.6):.4} | consumed_samples: {64 * n}"
    ),
    "tf2_bert": lambda n, r: (
        f"{_absl(n)} model_training_utils.py:505] Train Step: {n}/500000  / loss = {_loss(n):.6f}"
        f"  masked_lm_accuracy = {r.random():.6f}  lm_example_loss = {_loss(n):.6f}"
    ),
    "tf2_resnet": lambda n, r: (
        f"{_absl(n)} keras_utils.py:133] TimeHistory: {r.uniform(42, 43):.2f} seconds,"
        f" {r.uniform(9500, 9700):.2f} examples/second between steps {100 * n - 100} and {100 * n}"
    ),
    "ngc_tf1_bert": lambda n, r: (
        f"DLL {_day(n)}.399857 - Iteration: {n}  throughput_train : {r.uniform(990, 1010):.3f}"
        f" seq/s mlm_loss : {_loss(n):.4f}  nsp_loss : 0.7508  total_loss : {_loss(n) + 0.75:.4f}"
        "  learning_rate : 4e-05 "
    ),
    "dllogger_pytorch_bert": lambda n, r: (
        f"DLL {_day(n)}.679554 - Training Epoch: 0 Training Iteration: {n} "
        f" average_loss : {_loss(n)!r}  step_loss : {_loss(n)!r}  learning_rate : {r.random()!r} "
    ),
    "oneflow_bert": lambda n, r: (
        f"step: {n}, total_loss: {_loss(n):.3f}, mlm_loss: {_loss(n) - 0.7:.3f}, nsp_loss: 0.700,"
        f" throughput: {r.uniform(990, 1010):.3f} {1598056519.88 + n!r}"
    ),
    "pytorch_imagenet": lambda n, r: (
        f"Epoch: [0][{n:5d}/500000]\tTime {r.uniform(0.3, 0.4):6.3f} ({0.35:6.3f})"
        f"\tData  0.002 ( 0.001)\tLoss {_loss(n):.4e} ({_loss(n):.4e})\tAcc@1   1.56 (  1.17)"
    ),
    "mxnet_gluon_bert": lambda n, r: (
        f"INFO:root:{_day(n)} [step {n}]\tmlm_loss={_loss(n):.5f}\tmlm_acc=5.12305\tnsp_loss=0.69"
        f"\tnsp_acc=52.1\tthroughput={r.uniform(18, 19):.1f}K tks/s\tlr=0.0000100 time=12.34,"
        f" latency={r.uniform(600, 620):.1f} ms/batch"
    ),
    "mindspore": lambda n, r: f"epoch: 1, step: {n}, outputs are [{_loss(n) + r.random()!r}]",
    "paddlenlp": lambda n, r: (
        f"[{_day(n)},115] [    INFO] - tobal step: {n}, epoch: 0, batch: {n - 1},"
        f" loss: {_loss(n):.6f}, avg_reader_cost: 0.00011 sec, avg_batch_cost: 0.13001 sec,"
        f" avg_samples: 64.00000, ips: {r.uniform(490, 495):.5f} sequences/sec"
    ),
    "paddleclas": lambda n, r: (
        f"[{_day(n).replace('-', '/')}] ppcls INFO: epoch:0   train step:{n}   lr: 0.100000,"
        f" loss: {_loss(n):7.4f} top1:  0.0039 top5:  0.0078 batch_cost: 0.75584 s,"
        f" reader_cost: 0.03820 s, ips: {r.uniform(330, 340):.5f} samples/sec."
    ),
    "nanogpt": lambda n, r: (
        f"iter {n - 1}: loss {_loss(n):.4f}, time {r.uniform(120, 130):.2f}ms, mfu 31.25%"
    ),
    "nanochat": lambda n, r: (
        f"step {n - 1:5d} | loss: {_loss(n):.6f} | lr 6.0000e-05 | norm: 1.0312"
        f" | dt: {r.uniform(310, 320):.2f}ms | tok/sec: {r.uniform(1600000, 1700000):.2f}"
    ),
    "llm_c": lambda n, r: (
        f"step {n:4d}/500000 | loss {_loss(n):7.6f} (+0.21z)| norm 1.0312 (-0.02z)"
        f"| lr 1.00e-04 | {r.uniform(310, 320):.2f} ms | 48.9% bf16 MFU"
        f" | {r.uniform(1600000, 1700000):.0f} tok/s"
    ),
    "maxtext": lambda n, r: (
        f"{_absl(n)} metric_logger.py:226] completed step: {n - 1}, seconds: 5.125,"
        f" TFLOP/s/device: 149.250, Tokens/s/device: {r.uniform(9500, 9700):.3f},"
        f" total_weights: 393216, loss: {_loss(n):.3f}, lm_loss: {_loss(n):.3f}"
    ),
}
"""A line with a speed or a step's end, per format: the ``n``-th of its log, from 1."""

NOISE_LINES: tuple[Printer, ...] = (
    lambda n, r: (
        f"vs003:{n}:{n + 77} [{r.randrange(8)}] NCCL INFO Channel {r.randrange(12):02d} :"
        f" {r.randrange(8)}[1a000] -> {r.randrange(8)}[3d000] via P2P/IPC"
    ),
    lambda n, r: (
        f"vs003:{n}:{n + 77} [{r.randrange(8)}] NCCL INFO Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1"
        " [1] 1/-1/-1->0->-1|-1->0->1/-1/-1 [2] 2/-1/-1->3->1"
    ),
    lambda n, r: (
        f"vs003:{n}:{n + 77} [{r.randrange(8)}] NCCL INFO Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1"
        " [1] 1/-1/-1->0->-1|-1->0->1/-1/-1 [2] 3/-1/-1->0->2|2->0->3/-1/-1 [3] 3/-1/-1->0->2|2->0"
        "->3/-1/-1 [4] 6/-1/-1->0->7|7->0->6/-1/-1 [5] 6/-1/-1->0->7|7->0->6/-1/-1"
    ),
    lambda n, r: (
        f"{_day(n)}.{r.randrange(10**6):06d}: I tensorflow/stream_executor/platform/default/"
        "dso_loader.cc:48] Successfully opened dynamic library libcudart.so.11.0"
    ),
    lambda n, r: (
        "WARNING:tensorflow:From /usr/local/lib/python3.6/dist-packages/horovod/tensorflow/"
        f"__init__.py:{n}: The name tf.global_variables is deprecated. Please use"
        " tf.compat.v1.global_variables instead."
    ),
    lambda n, r: (
        f"INFO:tensorflow:  name = bert/encoder/layer_{r.randrange(12)}/attention/self/query/"
        "kernel:0, shape = (768, 768)"
    ),
    lambda n, r: (
        f"/usr/lib/python3.8/site-packages/torch/nn/parallel/distributed.py:{n}: UserWarning: You"
        " passed find_unused_parameters=true to DistributedDataParallel"
    ),
    lambda n, r: '  warnings.warn("`lr_scheduler.step()` was called before `optimizer.step()`")',
    lambda n, r: (
        f"\rIteration: {n % 100:3d}%|{'#' * (n % 100 // 10):10}| {n}/10000 [00:13<01:40,"
        f" {r.uniform(1, 9):.2f}it/s]"
    ),
    lambda n, r: f"loaded shard {n}: {r.randrange(10**6)} samples, vocab: 30528, time: 0.31 s",
    lambda n, r: (
        f"[{_day(n)},{r.randrange(1000):03d}] [INFO] [config.py:631:print]   activation_check"
        'pointing_config  {"partition_activations": false, "cpu_checkpointing": false, "profile":'
        ' false, "contiguous_memory_optimization": false}'
    ),
    lambda n, r: f"rank {r.randrange(8)}: loss scale {r.randrange(65536)}, overflow: False",
    lambda n, r: f"+ export CUDA_VISIBLE_DEVICES={r.randrange(8)} BATCH_SIZE={n}",
    lambda n, r: (
        f"| {r.randrange(8)}   N/A  {r.randrange(90)}C    P0   {n % 300}W / 300W |  13858MiB /"
        f" 16160MiB |    {r.randrange(100):3d}%      Default |"
        if n % 10 == 0
        else "=" * 60
    ),
    lambda n, r: (
        f"I05{1 + n % 28:02d} {_seconds(n)}.{r.randrange(10**6):06d} 139756658722624"
        f" session_manager.py:{n % 600}] Running local_init_op."
    ),
    lambda n, r: (
        f"{_day(n)}.{r.randrange(10**6):06d}: W tensorflow/core/grappler/optimizers/"
        "loop_optimizer.cc:906] Skipping loop optimization for Merge node with control input:"
        f" cond_{n}/branch_executed/_17"
    ),
    lambda n, r: "",
)

LAUNCHERS = ("", "", "", "vs00{host}: ", "", "", "", "{rank}: ")
"""What stands before each line of a file, in turn: nothing, a host (pdsh), a rank (srun)."""

TAG = "[1,{rank}]<stdout>:"


@dataclass(frozen=True)
class Tree:
    """Logs below ``root``. Of each, by its path in there: its format, and how many figures."""

    root: Path
    size: int
    holds: dict[str, tuple[str, int]]

    def figures(self) -> int:
        """Lines that have one, in all logs."""
        return sum(count for _, count in self.holds.values())


def make_tree(root: Path, size: int, files: int, noise: int, tagged: bool = False) -> Tree:
    """About ``size`` bytes in ``files`` logs, formats in turn; ``noise`` lines on average before
    each figure. What is there already, made with the same arguments, is not made again."""
    listing = root.with_suffix(".json")
    asked = [size, files, noise, tagged]
    if listing.exists():
        known = json.loads(listing.read_text(encoding="utf-8"))
        if known["asked"] == asked:
            holds = {path: (name, count) for path, (name, count) in known["holds"].items()}
            return Tree(root, known["size"], holds)
    chance = random.Random(1)
    launchers = (TAG,) if tagged else LAUNCHERS
    pools = {launcher: _pool(launcher, noise, chance) for launcher in launchers}
    holds, written = {}, 0
    for number in range(files):
        name = list(PRINTERS)[number % len(PRINTERS)]
        launcher = launchers[(number // len(PRINTERS)) % len(launchers)]
        path = Path(name, f"{number % 4 + 1}n8g", f"{number}.log")
        data, count = _log(name, launcher, pools[launcher], size // files, chance)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        holds[str(path)] = (name, count)
        written += len(data)
    about = {"asked": asked, "size": written, "holds": holds}
    listing.write_text(json.dumps(about), encoding="utf-8")
    return Tree(root, written, holds)


def _log(
    name: str, launcher: str, pool: list[bytes], size: int, chance: random.Random
) -> tuple[bytes, int]:
    parts: list[bytes] = []
    total = count = 0
    while total < size:
        count += 1
        line = _prefix(launcher, chance) + PRINTERS[name](count, chance) + "\n"
        parts += [chance.choice(pool), line.encode()]
        total += len(parts[-2]) + len(parts[-1])
    return b"".join(parts), count


def _pool(launcher: str, noise: int, chance: random.Random) -> list[bytes]:
    """Pieces of noise to choose from."""
    if not noise:
        return [b""]
    return [
        b"".join(
            (
                _prefix(launcher, chance) + chance.choice(NOISE_LINES)(10000 + n, chance) + "\n"
            ).encode()
            for n in range(chance.randrange(noise // 2, noise + noise // 2 + 1))
        )
        for _ in range(200)
    ]


def _prefix(launcher: str, chance: random.Random) -> str:
    return launcher.format(rank=chance.randrange(8), host=chance.randrange(1, 5))


def _seconds(n: int) -> str:
    return f"{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}"


def _day(n: int) -> str:
    return f"2021-05-{1 + n // 86400 % 28:02d} {_seconds(n)}"


def _stamp(n: int) -> str:
    return f"[{_day(n)},{n % 1000:03d}]"


def _absl(n: int) -> str:
    return f"I05{1 + n // 86400 % 28:02d} {_seconds(n)}.661866 140540494919424"


def _loss(n: int) -> float:
    return 11.0 / (1.0 + n / 1000)
