"""A program of the tests: a small GPT under DistributedDataParallel over gloo, as people write it.

``tiny_gpt.py --steps N --batch N --seq N [--bf16]``, under torchrun; rank 0 prints in Megatron's
form. It knows nothing of who starts it.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from steps import line
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, WIDTH = 64, 32


class Gpt(nn.Module):
    def __init__(self, seq: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(seq, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        size = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        hidden = self.tokens(ids) + self.places(torch.arange(size))
        scores: torch.Tensor = self.head(self.block(hidden, mask, is_causal=True))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--steps", "--batch", "--seq"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1 + int(os.environ["RANK"]))
    model = DistributedDataParallel(Gpt(given.seq))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world = dist.get_world_size()
    for step in range(1, given.steps + 1):
        begun = time.perf_counter()
        ids = torch.randint(VOCAB, (given.batch, given.seq + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
            scores = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ms = 1e3 * (time.perf_counter() - begun)
        if dist.get_rank() == 0:
            print(line(step, given.steps, ms, given.batch * world, f"{loss.item():.6E}"))


if __name__ == "__main__":
    main()
