"""A program of the tests: HuggingFace's Trainer around a small GPT-2, as its users write it.

The options are those of TrainingArguments, and ``--seq N``, ``--timer`` (a callback of ours).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

VOCAB = 256


@dataclass
class Own:
    seq: int = 32
    layers: int = 2
    timer: bool = False


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, seq: int) -> None:
        self.ids = torch.randint(VOCAB, (4096, seq), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main() -> None:
    own, arguments = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
    callbacks = []
    if own.timer:
        from dlperf_hpc import TrainerTimer

        callbacks.append(TrainerTimer(model="gpt2-toy", seq_len=own.seq, stop=False))
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=own.seq, n_embd=64, n_layer=own.layers, n_head=2
    )
    model = GPT2LMHeadModel(config)
    Trainer(model, arguments, train_dataset=Tokens(own.seq), callbacks=callbacks).train()


if __name__ == "__main__":
    main()
