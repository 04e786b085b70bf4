"""A program of the tests: a loop under Accelerate, as people write it, that prints Megatron's form.

``accelerated.py STEPS BATCH``, under ``accelerate launch``; it knows nothing of who starts it.
"""

from __future__ import annotations

import sys
import time

import torch
from accelerate import Accelerator
from steps import line


def main() -> None:
    steps, batch = int(sys.argv[1]), int(sys.argv[2])
    accelerator = Accelerator()
    # In one piece: its processes share a pipe, and print() would write the line's end apart.
    sys.stdout.write(f"process {accelerator.process_index} of {accelerator.num_processes}\n")
    model = torch.nn.Linear(8, 8)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        loss = model(torch.ones(batch, 8)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        ms = 1e3 * (time.perf_counter() - begun)
        if accelerator.is_main_process:
            samples = batch * accelerator.num_processes
            print(line(step, steps, ms, samples, f"{loss.item():.6E}"))
        time.sleep(0.005)


if __name__ == "__main__":
    main()
