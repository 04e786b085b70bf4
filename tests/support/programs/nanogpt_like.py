"""A program of the tests that prints as nanoGPT does: one line for an iteration, which is an
optimizer step with all of its micro-batches. DistributedDataParallel over gloo, under torchrun.

``nanogpt_like.py --batch_size=4 --block_size=32 --gradient_accumulation_steps=2 --max_iters=40``,
of which the accumulation is that of all processes, as nanoGPT has it; ``--timer=1``: under a Timer.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from tiny_gpt import VOCAB, Gpt
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    given = {"batch_size": 4, "block_size": 32, "gradient_accumulation_steps": 2}
    given.update(max_iters=40, timer=0)
    for word in sys.argv[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if name in given:
            given[name] = int(value)
            print(f"Overriding: {name} = {value}")
    dist.init_process_group("gloo")
    world, batch, block = dist.get_world_size(), given["batch_size"], given["block_size"]
    micro_batches = given["gradient_accumulation_steps"] // world
    samples = batch * micro_batches * world
    print(f"tokens per iteration will be: {samples * block:,}")
    torch.manual_seed(1337 + int(os.environ["RANK"]))
    model = DistributedDataParallel(Gpt(block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    timer = None
    if given["timer"]:
        from dlperf_hpc import Timer

        timer = Timer(global_batch=samples, model="gpt-toy", seq_len=block, stop=False)
    begun = time.time()
    for number in range(given["max_iters"]):
        for micro in range(micro_batches):
            last = micro == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                ids = torch.randint(VOCAB, (batch, block + 1))
                scores = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
                (loss / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.time()
        took, begun = now - begun, now
        if dist.get_rank() == 0:
            print(f"iter {number}: loss {loss.item():.4f}, time {1e3 * took:.2f}ms, mfu -100.00%")
        if timer is not None:
            timer.step(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
