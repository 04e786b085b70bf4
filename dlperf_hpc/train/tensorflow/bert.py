"""BERT for pre-training in TensorFlow: the model of ``train/torch/bert.py``, number for number.

Nothing in it waits for the device or branches on data, and all shapes are known when it is traced:
XLA compiles it whole.

Shapes: B sequences, T tokens, M masked positions, h hidden, V vocabulary (see ``bert``).
"""

from __future__ import annotations

import tensorflow as tf

from dlperf_hpc.train.configs import BertConfig
from dlperf_hpc.train.tensorflow.layers import (
    Dense,
    Embedding,
    FeedForward,
    LayerNorm,
    Module,
    Recipe,
    SelfAttention,
    Tensor,
    cross_entropy,
    dropout,
    gelu,
    layer_seed,
)


class Embeddings(Module):
    """Word, position and segment embeddings, summed and normalised: ids [B, T] to [B * T, h].

    The LayerNorm stands here in the pre-LayerNorm model too, as in ``bing_bert``.
    """

    def __init__(self, recipe: Recipe, config: BertConfig) -> None:
        super().__init__()
        self._dropout = config.dropout
        self.word = Embedding(recipe, config.vocab, config.hidden)
        self.position = Embedding(recipe, config.max_positions, config.hidden)
        self.segment = Embedding(recipe, config.types, config.hidden)
        self.norm = LayerNorm(recipe, config.hidden)

    def __call__(self, input_ids: Tensor, segment_ids: Tensor, seed: Tensor) -> Tensor:
        tokens, hidden = input_ids.shape[1], self.word.weight.shape[1]
        # Positions are 0..T-1: a slice of the table, no lookup.
        summed = self.word(input_ids) + self.position.weight[:tokens]
        rows = tf.reshape(summed, (-1, hidden)) + self.segment.few(tf.reshape(segment_ids, [-1]))
        return dropout(self.norm(rows), self._dropout, seed, site=0)


class Layer(Module):
    """One encoder layer; its LayerNorms before the sublayers or after the residual sums."""

    def __init__(self, recipe: Recipe, config: BertConfig) -> None:
        super().__init__()
        self._pre_norm = config.layer_norm == "pre"
        self._dropout = config.dropout
        self.attention = SelfAttention(
            recipe, config.hidden, config.heads, config.dropout, causal=False, scale=1.0
        )
        self.attention_norm = LayerNorm(recipe, config.hidden)
        self.feed_forward = FeedForward(recipe, config.hidden, config.ffn, gelu, scale=1.0)
        self.feed_forward_norm = LayerNorm(recipe, config.hidden)

    def __call__(self, x: Tensor, tokens: int, mask: Tensor | None, seed: Tensor) -> Tensor:
        if self._pre_norm:
            x = x + self._out(self.attention(self.attention_norm(x), tokens, mask, seed), seed, 1)
            return x + self._out(self.feed_forward(self.feed_forward_norm(x)), seed, 2)
        x = self.attention_norm(x + self._out(self.attention(x, tokens, mask, seed), seed, 1))
        return self.feed_forward_norm(x + self._out(self.feed_forward(x), seed, 2))

    def _out(self, x: Tensor, seed: Tensor, site: int) -> Tensor:
        """What a sublayer adds to the residual stream."""
        return dropout(x, self._dropout, seed, site)


class MaskedLMHead(Module):
    """Scores of the vocabulary for gathered positions: [B * M, h] to [B * M, V].

    The projection is the word embedding's own weight [V, h], handed in at each call.
    """

    def __init__(self, recipe: Recipe, config: BertConfig) -> None:
        super().__init__()
        self.compute = recipe.compute
        self.transform = Dense(recipe, config.hidden, config.hidden)
        self.norm = LayerNorm(recipe, config.hidden)
        self.bias = recipe.constant("bias", config.vocab)

    def __call__(self, x: Tensor, word_weight: Tensor) -> Tensor:
        kind = self.compute
        normal = tf.cast(self.norm(gelu(self.transform(x))), kind)
        scores = tf.matmul(normal, tf.cast(word_weight, kind), transpose_b=True)
        return tf.nn.bias_add(scores, tf.cast(self.bias, kind))


class BertForPreTraining(Module):
    """BERT with both of its pre-training heads; calling it gives the loss to be minimised.

    ``compute`` is the dtype of matrix products: float32, bfloat16 or float16; variables are float32
    always. A new model holds the initial values that the PyTorch form describes (other random
    numbers than PyTorch's): those of ``seed``.
    """

    def __init__(self, config: BertConfig, compute: str = "float32", seed: int = 0) -> None:
        super().__init__()
        self._config = config
        recipe = Recipe(compute, seed, config.init_std, config.layer_norm_eps)
        self.embeddings = Embeddings(recipe, config)
        self.layers = [Layer(recipe, config) for _ in range(config.layers)]
        if config.layer_norm == "pre":
            self.final_norm = LayerNorm(recipe, config.hidden)
        self.pooler = Dense(recipe, config.hidden, config.hidden)
        self.mlm = MaskedLMHead(recipe, config)
        self.nsp = Dense(recipe, config.hidden, 2)

    def __call__(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        masked_lm_positions: Tensor,
        masked_lm_ids: Tensor,
        next_sentence_labels: Tensor,
        input_mask: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        """Mean MLM cross-entropy over the masked positions + mean NSP cross-entropy: a scalar.

        Arguments as for the PyTorch form: integers, ``input_ids``, ``segment_ids``, ``input_mask``
        [B, T]; ``masked_lm_positions``, ``masked_lm_ids`` [B, M] with -100 for an id that counts
        for nothing; ``next_sentence_labels`` [B]. ``seed`` [2], int32, is dropout's: without one
        nothing is dropped. The loss is float32 whatever the precision.
        """
        rows = self.encode(input_ids, segment_ids, input_mask, seed)
        tokens, hidden = input_ids.shape[1], self._config.hidden
        masked = tf.gather(rows, _flat(masked_lm_positions, tokens))
        scores = self.mlm(masked, self.embeddings.word.weight)
        mlm_loss = cross_entropy(scores, tf.reshape(masked_lm_ids, [-1]))
        first = tf.reshape(rows, (-1, tokens, hidden))[:, 0]
        return mlm_loss + cross_entropy(self.nsp(tf.tanh(self.pooler(first))), next_sentence_labels)

    def encode(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        input_mask: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states as rows [B * T, h], float32; arguments as for a call."""
        # [B, 1, 1, T]: the same for every head and query.
        mask = None if input_mask is None else tf.cast(input_mask, tf.bool)[:, None, None, :]
        rows = self.embeddings(input_ids, segment_ids, seed)
        for number, layer in enumerate(self.layers, start=1):
            rows = layer(rows, input_ids.shape[1], mask, layer_seed(seed, number))
        return self.final_norm(rows) if self._config.layer_norm == "pre" else rows


def _flat(positions: Tensor, tokens: int) -> Tensor:
    """Positions [B, M] within sequences, as places among all rows [B * M]."""
    start = tf.range(positions.shape[0], dtype=positions.dtype) * tokens
    return tf.reshape(positions + start[:, None], [-1])
