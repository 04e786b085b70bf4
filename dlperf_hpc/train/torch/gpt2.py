"""GPT-2 in PyTorch: one readable model that a GPU runs fast.

- one matrix product for query, key and value;
- ``scaled_dot_product_attention`` told that it is causal: no mask is ever made, and the flash
  kernels leave out what lies above the diagonal;
- the scores of the vocabulary, by far the largest tensor, exist once and in the precision of the
  matrix product: float32 is for a few rows at a time, and the gradient takes the scores' place;
- nothing in ``forward`` waits for the device or branches on data: ``torch.compile`` gets one graph.

Shapes: B sequences, T tokens, h hidden, V vocabulary (see ``gpt2``), N = B * T rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from dlperf_hpc.train.configs import Gpt2Config

IGNORED = -100  # the label that is left out of the mean, as in torch's cross-entropy

# Scores widened to float32 at once: 256 MiB, 1334 rows of GPT-2. Fewer, and a GPU would spend its
# time on starting kernels.
_WIDENED = 2**26


def _layer_norm(config: Gpt2Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)


class SelfAttention(nn.Module):
    """Each token attends to itself and to those before it: [B, T, h] to [B, T, h]."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, T, h] to [B, heads, T, h / heads], without a copy."""
        batch, tokens, hidden = x.shape
        return x.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, gelu in its tanh approximation (``gelu_new``), linear: [B, T, h] to [B, T, h]."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.ffn)
        self.down = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class Layer(nn.Module):
    """One decoder layer, a LayerNorm before each of its sublayers."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = _layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x


class Gpt2(nn.Module):
    """GPT-2 with its language-model head; ``forward`` gives the loss to be minimised.

    A new model holds GPT-2's initial values: N(0, init_std) for matrices and embeddings, divided
    by sqrt(2L) where a sublayer ends in the residual sum; 0 for biases, 1 and 0 for LayerNorm.
    """

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_norm = _layer_norm(config)
        self._initialise()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the next token over all positions: a scalar, float32 always.

        Integer tensors [B, T]; ``labels[b, t]`` is what follows ``input_ids[b, t]``, already
        shifted, and counts for nothing where it is -100.
        """
        return self.loss_of(self.decode(input_ids), labels)

    def loss_of(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The loss of the last hidden states [B, T, h]; a part that is compiled by itself."""
        # The head is the word embedding's own weight.
        scores = F.linear(hidden, self.word.weight)
        return cross_entropy(scores.flatten(0, 1), labels.flatten())

    def decode(self, input_ids: Tensor) -> Tensor:
        """The last hidden states [B, T, h] of ids [B, T]."""
        # Positions are 0..T-1: a slice of the table, no lookup.
        hidden = self.word(input_ids) + self.position.weight[: input_ids.shape[1]]
        hidden = self.dropout(hidden)
        again = self.config.checkpoint_activations and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            hidden = self._computed_twice(layer, hidden) if again else layer(hidden)
        out: Tensor = self.final_norm(hidden)
        return out

    def _computed_twice(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        # Without dropout there is no random state that the second time would have to begin with.
        random = self.config.dropout > 0
        out: Tensor = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=random)
        return out

    def _initialise(self) -> None:
        std = self.config.init_std
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                ends = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                scale = 1 / math.sqrt(2 * self.config.layers) if ends else 1.0
                nn.init.normal_(parameter, mean=0.0, std=std * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows of scores [N, V] whose label [N] is not -100, computed in float32.

    In eager mode the backward pass writes the gradient over ``scores``: give it nothing that is
    used elsewhere. It cannot run twice, and says so.
    """
    if torch.compiler.is_compiling():
        # The compiler fuses what is written out: no float32 copy of the scores is ever stored.
        return F.cross_entropy(scores.float(), labels, ignore_index=IGNORED)
    loss: Tensor = _CrossEntropy.apply(scores, labels)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Torch's own keeps float32 log-probabilities [N, V] and makes two more such tensors for the
    gradient: 12 bytes for each score. This keeps the scores (2 bytes in half precision), and a few
    numbers for each row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        counted = labels != IGNORED
        column = labels.masked_fill(~counted, 0).unsqueeze(1)
        chosen = torch.empty(column.shape, dtype=torch.float32, device=scores.device)
        for rows in _parts(scores):
            log_p = F.log_softmax(scores[rows], dim=-1, dtype=torch.float32)
            torch.gather(log_p, 1, column[rows], out=chosen[rows])
        weight = counted.unsqueeze(1) / counted.sum()
        log_sum = scores.gather(1, column).float() - chosen  # ln sum exp of each row
        ctx.save_for_backward(scores, column, log_sum, weight)
        return -(chosen * weight).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scores, column, log_sum, weight = ctx.saved_tensors
        weight = weight * gradient
        minus_one = torch.full_like(weight, -1.0)
        for rows in _parts(scores):
            slope = (scores[rows] - log_sum[rows]).exp_()  # float32: log_sum is
            slope.scatter_add_(1, column[rows], minus_one[rows])
            torch.mul(slope, weight[rows], out=scores[rows])
        return scores, None


def _parts(scores: Tensor) -> Iterator[slice]:
    """Rows of [N, V] that are widened together."""
    step = max(1, _WIDENED // scores.shape[1])
    return (slice(start, start + step) for start in range(0, scores.shape[0], step))
