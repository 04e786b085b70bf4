"""BERT and GPT-2 for pre-training in PyTorch: readable models that a GPU runs fast.

- one matrix product for query, key and value;
- ``scaled_dot_product_attention``, without a mask where nothing is padded, and told that GPT-2's is
  causal: a mask rules the flash kernels out, which leave out what lies above the diagonal;
- BERT's masked positions gathered before the head, so the vocabulary is scored M times and not T;
- GPT-2's scores of the vocabulary, by far the largest tensor, exist once and in the precision of
  the matrix product: float32 is for a few rows at a time, and the gradient takes the scores' place;
- nothing in ``forward`` waits for the device or branches on data: ``torch.compile`` gets one graph.

Shapes: B sequences, T tokens, M masked positions, h hidden, V vocabulary, N = B * T rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from dlperf_hpc.train.workloads import WIDENED as _WIDENED
from dlperf_hpc.train.workloads.bert import BertConfig
from dlperf_hpc.train.workloads.gpt2 import Gpt2Config
from dlperf_hpc.train.workloads.llama3 import LlamaConfig

Config = Union[BertConfig, Gpt2Config]
IGNORED = -100  # the label that is left out of the mean, as in torch's cross-entropy


def build(config: Config, _: object) -> nn.Module:
    """A new model; its random numbers follow torch's seed."""
    return Gpt2(config) if isinstance(config, Gpt2Config) else BertForPreTraining(config)


def _layer_norm(config: Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)


class SelfAttention(nn.Module):
    """Multi-head self-attention, [B, T, h] to [B, T, h], over all tokens of a sequence; ``causal``:
    each token attends to itself and to those before it."""

    def __init__(self, config: Config, causal: bool) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.causal = causal
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = map(self._split_heads, self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal
        )
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, T, h] to [B, heads, T, h / heads], without a copy."""
        batch, tokens, hidden = x.shape
        return x.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, gelu (``approximate``: "none" or "tanh"), linear: [B, T, h] to [B, T, h]."""

    def __init__(self, config: Config, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.up = nn.Linear(config.hidden, config.ffn)
        self.down = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return out


class Layer(nn.Module):
    """One layer; its LayerNorms before the sublayers or after the residual sums."""

    def __init__(self, config: Config, *, pre_norm: bool, causal: bool, approximate: str) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = SelfAttention(config, causal)
        self.attention_norm = _layer_norm(config)
        self.feed_forward = FeedForward(config, approximate)
        self.feed_forward_norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised: ids [B, T] to [B, T, h]. The
    LayerNorm stands here in the pre-LayerNorm model too, as in ``bing_bert``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.segment = nn.Embedding(config.types, config.hidden)
        self.norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        # Positions are 0..T-1: a slice of the table, no lookup.
        position = self.position.weight[: input_ids.shape[1]]
        summed = self.word(input_ids) + self.segment(segment_ids) + position
        out: Tensor = self.dropout(self.norm(summed))
        return out


class MlmHead(nn.Module):
    """Scores of the vocabulary for gathered positions: [B, M, h] to [B, M, V]. The projection is
    the word embedding's own weight, handed in at each call; the bias is this module's."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm = _layer_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, x: Tensor, word_weight: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.transform(x))), word_weight, self.bias)


class BertForPreTraining(nn.Module):
    """BERT with both of its pre-training heads; ``forward`` gives the loss to be minimised. A new
    model holds BERT's initial values: N(0, init_std) for matrices and embeddings (not truncated at
    two deviations as Google's is), 0 for biases, 1 and 0 for LayerNorm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        pre_norm = config.layer_norm == "pre"
        self.layers = nn.ModuleList(
            Layer(config, pre_norm=pre_norm, causal=False, approximate="none")
            for _ in range(config.layers)
        )
        self.final_norm = _layer_norm(config) if pre_norm else nn.Identity()
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.mlm = MlmHead(config)
        self.nsp = nn.Linear(config.hidden, 2)
        self.apply(self._initialise)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        masked_lm_positions: Tensor,
        masked_lm_ids: Tensor,
        next_sentence_labels: Tensor,
        input_mask: Tensor | None = None,
    ) -> Tensor:
        """Mean MLM cross-entropy over the masked positions + mean NSP cross-entropy: a scalar.
        Integer tensors: ``input_ids``, ``segment_ids`` [B, T]; ``masked_lm_positions``,
        ``masked_lm_ids`` [B, M]; ``next_sentence_labels`` [B]; ``input_mask`` [B, T] with 1 for a
        token and 0 for padding, None if nothing is padded. Where a sequence has fewer than M masked
        positions, the rest carry position 0 and id -100, and count for nothing. Both losses are
        float32 whatever the precision of the model."""
        hidden = self.encode(input_ids, segment_ids, input_mask)
        scores = self.mlm(_gather(hidden, masked_lm_positions), self.embeddings.word.weight)
        mlm_loss = F.cross_entropy(scores.flatten(0, 1).float(), masked_lm_ids.flatten())
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return mlm_loss + F.cross_entropy(self.nsp(pooled).float(), next_sentence_labels)

    def encode(
        self, input_ids: Tensor, segment_ids: Tensor, input_mask: Tensor | None = None
    ) -> Tensor:
        """The last hidden states [B, T, h]; arguments as for ``forward``."""
        # [B, 1, 1, T]: the same for every head and query.
        mask = None if input_mask is None else input_mask.bool()[:, None, None, :]
        hidden = self.embeddings(input_ids, segment_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        out: Tensor = self.final_norm(hidden)
        return out

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=self.config.init_std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def _gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """Hidden states [B, T, h] at positions [B, M]: [B, M, h]. Indexing's backward would sort."""
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


class CausalModel(nn.Module):
    """What language models have in common that predict the next token: the loss over ``layers``,
    whose output ``final_norm`` normalises and the weight of the head scores. One that derives from
    it sets ``config``, ``word`` (the embedding), ``layers`` and ``final_norm``, and writes
    :meth:`decode`; ``forward`` gives the loss to be minimised."""

    config: Gpt2Config | LlamaConfig
    word: nn.Embedding
    layers: nn.ModuleList
    final_norm: nn.Module

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the next token over all positions: a scalar, float32 always.
        Integer tensors [B, T]; ``labels[b, t]`` is what follows ``input_ids[b, t]``, already
        shifted, and counts for nothing where it is -100."""
        return self.loss_of(self.decode(input_ids), labels)

    def loss_of(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The loss of the last hidden states [B, T, h]; a part that is compiled by itself."""
        scores = F.linear(hidden, self.head_weight())
        return cross_entropy(scores.flatten(0, 1), labels.flatten())

    def head_weight(self) -> Tensor:
        """[V, h], from which the scores of the vocabulary are made: the word embedding's own."""
        return self.word.weight

    def decode(self, input_ids: Tensor) -> Tensor:
        """The last hidden states [B, T, h] of ids [B, T]."""
        raise NotImplementedError

    def through_layers(self, hidden: Tensor, *more: Tensor) -> Tensor:
        """Embedded tokens [B, T, h] to the last hidden states; ``more`` is what each layer gets
        besides."""
        again = self.config.checkpoint_activations and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            hidden = self._computed_twice(layer, hidden, *more) if again else layer(hidden, *more)
        out: Tensor = self.final_norm(hidden)
        return out

    def _computed_twice(self, layer: nn.Module, *given: Tensor) -> Tensor:
        # Without dropout there is no random state that the second time would have to begin with.
        random = self.config.dropout > 0
        out: Tensor = checkpoint(layer, *given, use_reentrant=False, preserve_rng_state=random)
        return out


class Gpt2(CausalModel):
    """GPT-2 with its language-model head. A new model holds GPT-2's initial values: N(0, init_std)
    for matrices and embeddings, divided by sqrt(2L) where a sublayer ends in the residual sum; 0
    for biases, 1 and 0 for LayerNorm."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            Layer(config, pre_norm=True, causal=True, approximate="tanh")
            for _ in range(config.layers)
        )
        self.final_norm = _layer_norm(config)
        self._initialise()

    def decode(self, input_ids: Tensor) -> Tensor:
        """The last hidden states [B, T, h] of ids [B, T]."""
        # Positions are 0..T-1: a slice of the table, no lookup.
        hidden = self.word(input_ids) + self.position.weight[: input_ids.shape[1]]
        return self.through_layers(self.dropout(hidden))

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
    """Mean over the rows of scores [N, V] whose label [N] is not -100, computed in float32. In
    eager mode the backward pass writes the gradient over ``scores``: give it nothing that is used
    elsewhere. It cannot run twice, and says so."""
    if torch.compiler.is_compiling():
        # The compiler fuses what is written out: no float32 copy of the scores is ever stored.
        return F.cross_entropy(scores.float(), labels, ignore_index=IGNORED)
    loss: Tensor = _CrossEntropy.apply(scores, labels)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Torch's own keeps float32 log-probabilities [N, V] and makes two more such tensors for the
    gradient: 12 bytes a score. This keeps the scores, and a few numbers for each row."""

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
    step = max(1, _WIDENED // scores.shape[1])
    return (slice(start, start + step) for start in range(0, scores.shape[0], step))
