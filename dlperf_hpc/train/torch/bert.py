"""BERT for pre-training in PyTorch: one readable model that a GPU runs fast.

- one matrix product for query, key and value;
- ``scaled_dot_product_attention``, without a mask where there is no padding: a mask rules the
  flash kernels out;
- masked positions gathered before the MLM head, so the vocabulary is scored M times and not T;
- nothing in ``forward`` waits for the device or branches on data: ``torch.compile`` gets one graph.

Shapes: B sequences, T tokens, M masked positions, h hidden, V vocabulary (see ``bert``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlperf_hpc.train.configs import BertConfig


def _layer_norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised: ids [B, T] to [B, T, h].

    The LayerNorm stands here in the pre-LayerNorm model too, as in ``bing_bert``.
    """

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


class SelfAttention(nn.Module):
    """Multi-head self-attention over all tokens of a sequence: [B, T, h] to [B, T, h]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self._split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, T, h] to [B, heads, T, h / heads], without a copy."""
        batch, tokens, hidden = x.shape
        return x.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, exact gelu (erf, not its tanh approximation), linear: [B, T, h] to [B, T, h]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.ffn)
        self.down = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Layer(nn.Module):
    """One encoder layer; its LayerNorms before the sublayers or after the residual sums."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.pre_norm = config.layer_norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = _layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x


class MaskedLMHead(nn.Module):
    """Scores of the vocabulary for gathered positions: [B, M, h] to [B, M, V].

    The projection is the word embedding's own weight, handed in at each call; the bias is this
    module's.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm = _layer_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, x: Tensor, word_weight: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.transform(x))), word_weight, self.bias)


class BertForPreTraining(nn.Module):
    """BERT with both of its pre-training heads; ``forward`` gives the loss to be minimised.

    A new model holds BERT's initial values: N(0, init_std) for matrices and embeddings (not
    truncated at two deviations as Google's is), 0 for biases, 1 and 0 for LayerNorm.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        pre_norm = config.layer_norm == "pre"
        self.final_norm = _layer_norm(config) if pre_norm else nn.Identity()
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.mlm = MaskedLMHead(config)
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
        token and 0 for padding, None if nothing is padded. Where a sequence has fewer than M
        masked positions, the rest carry position 0 and id -100, and count for nothing. Both
        losses are float32 whatever the precision of the model.
        """
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
    """Hidden states [B, T, h] at positions [B, M]: [B, M, h].

    ``torch.gather``, since the backward of indexing sorts its indices first.
    """
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
