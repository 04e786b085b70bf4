"""Equal models as others write them, as workloads: HuggingFace's, and nanoGPT's way.

Each takes our batch in its own form and gives its loss; sizes are the case's.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlperf_hpc.acceptance.numerics import huggingface
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import gpt2


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(batch, tokens, width)))
        out: Tensor = x + self.drop(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)))))
        return out


class _Plain(nn.Module):
    """GPT as nanoGPT has it: positions looked up, the loss torch's own over all scores."""

    def __init__(self, config: gpt2.Gpt2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.hidden)
        self.wpe = nn.Embedding(config.max_positions, config.hidden)
        self.drop = nn.Dropout(config.dropout)
        blocks = (_Block(config.hidden, config.heads, config.dropout) for _ in range(config.layers))
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=config.init_std)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        scores = self.lm_head(self.ln_f(x))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


def nanogpt(_library: str, case: Case) -> nn.Module:
    """A GPT-2 of this size in nanoGPT's manner."""
    return _Plain(gpt2.config_of(case))


def others(model: str) -> dict[str, WorkloadDeclaration]:
    """Whose code there is to compare a workload with, by name."""
    found = {"huggingface": huggingface(model)}
    if not model.startswith("bert"):
        found["nanogpt"] = replace(registry().workloads[model], build=nanogpt)
    return found
