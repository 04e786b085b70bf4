"""Llama 3 for pre-training in PyTorch, in the manner of ``models.py``, whose loss it has.

- one matrix product for query, key and value, and one for both halves of SwiGLU;
- queries and keys are rotated together;
- cosines and sines are computed in each forward pass, a few numbers beside a layer's: a buffer
  would be cast to half precision with the model, and DDP would send it to all ranks.

Shapes: B sequences, T tokens, h hidden, H heads of size d, K of keys and values.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlperf_hpc.train.torch.models import CausalModel
from dlperf_hpc.train.workloads.llama3 import LlamaConfig

_LOW, _HIGH = 1.0, 4.0
"""Turns within the original context: a frequency with fewer than the first is divided by the whole
factor, one with more than the second stays as it is."""


def build(config: LlamaConfig, _: object) -> nn.Module:
    """A new model; its random numbers follow torch's seed."""
    return Llama(config)


def rotation(config: LlamaConfig, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32 [T, 1, d / 2], of the angles by which positions 0..T-1 are turned:
    position times frequency theta^(-2i/d) (RoFormer, arXiv:2104.09864), scaled as in Llama 3.1
    (``apply_scaling`` of Meta's ``llama_models``)."""
    size = config.hidden // config.heads
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    frequencies = 1.0 / config.rope_theta**exponents
    turns = config.original_positions * frequencies / (2 * math.pi)
    kept = ((turns - _LOW) / (_HIGH - _LOW)).clamp(0.0, 1.0)
    frequencies = frequencies * (kept + (1.0 - kept) / config.rope_factor)
    positions = torch.arange(tokens, dtype=torch.float32, device=device)
    angles = (positions[:, None] * frequencies)[:, None, :]
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, T, heads, d], of which numbers i and i + d/2 are turned together, as in transformers'
    weights; computed in float32."""
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).type_as(x)


class RmsNorm(nn.RMSNorm):
    """Torch's, whose weight takes the input's precision: its fused kernels want them equal."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape [..., h] to that shape, in the input's precision."""
        assert self.weight is not None
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class GroupedAttention(nn.Module):
    """Causal self-attention; H / K heads of queries share one of keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        self.size = config.hidden // config.heads
        together = (config.heads + 2 * config.key_heads) * self.size
        self.qkv = nn.Linear(config.hidden, together, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, h] to [B, T, h]; cosines and sines are those of :func:`rotation`."""
        parts = self.qkv(x).unflatten(-1, (-1, self.size))
        turning, v = parts.split((self.heads + self.key_heads, self.key_heads), dim=2)
        turned = rotated(turning, cos, sin).transpose(1, 2)
        q, k = turned.split((self.heads, self.key_heads), dim=1)
        context = self._attended(q, k, v.transpose(1, 2))
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # A GPU has no kernel for grouped heads in float32 but the one that writes all scores out.
        grouped = q.dtype != torch.float32
        if not grouped:
            times = self.heads // self.key_heads
            k, v = (each.repeat_interleave(times, dim=1) for each in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


class SwiGlu(nn.Module):
    """Linear, silu of one half times the other, linear (arXiv:2002.05202)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, h] to [B, T, h]."""
        gate, up = self.up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class LlamaLayer(nn.Module):
    """One layer; its norms stand before the sublayers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(config.hidden, eps=config.rms_norm_eps)
        self.attention = GroupedAttention(config)
        self.feed_forward_norm = RmsNorm(config.hidden, eps=config.rms_norm_eps)
        self.feed_forward = SwiGlu(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, h] to [B, T, h]; cosines and sines are those of :func:`rotation`."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Llama(CausalModel):
    """Llama 3 with its language-model head. A new model holds N(0, init_std) in matrices and
    embeddings, as transformers' does, and 1 in RMSNorm."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.layers))
        self.final_norm = RmsNorm(config.hidden, eps=config.rms_norm_eps)
        tied = config.tied
        self.head = None if tied else nn.Linear(config.hidden, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, mean=0.0, std=config.init_std)

    def head_weight(self) -> Tensor:
        """[V, h]: the head's own, or the word embedding's where they are tied."""
        return super().head_weight() if self.head is None else self.head.weight

    def decode(self, input_ids: Tensor) -> Tensor:
        """The last hidden states [B, T, h] of ids [B, T]."""
        turning = rotation(self.config, input_ids.shape[1], input_ids.device)
        return self.through_layers(self.word(input_ids), *turning)
