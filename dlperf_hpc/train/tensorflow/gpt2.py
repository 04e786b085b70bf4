"""GPT-2 in TensorFlow: the model of ``train/torch/gpt2.py``, number for number.

Nothing in it waits for the device or branches on data, and all shapes are known when it is traced:
XLA compiles it whole.

Shapes: B sequences, T tokens, h hidden, V vocabulary (see ``gpt2``).
"""

from __future__ import annotations

import math

import tensorflow as tf

from dlperf_hpc.train.configs import Gpt2Config
from dlperf_hpc.train.tensorflow.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    Module,
    Recipe,
    SelfAttention,
    Tensor,
    cross_entropy,
    dropout,
    gelu_tanh,
    layer_seed,
)


class Layer(Module):
    """One decoder layer, a LayerNorm before each of its sublayers: rows [B * T, h] to the same."""

    def __init__(self, recipe: Recipe, config: Gpt2Config) -> None:
        super().__init__()
        self._dropout = config.dropout
        ends = 1 / math.sqrt(2 * config.layers)
        self.attention = SelfAttention(
            recipe, config.hidden, config.heads, config.dropout, causal=True, scale=ends
        )
        self.attention_norm = LayerNorm(recipe, config.hidden)
        self.feed_forward = FeedForward(recipe, config.hidden, config.ffn, gelu_tanh, scale=ends)
        self.feed_forward_norm = LayerNorm(recipe, config.hidden)

    def __call__(self, x: Tensor, tokens: int, seed: Tensor) -> Tensor:
        x = x + self._out(self.attention(self.attention_norm(x), tokens, None, seed), seed, 1)
        return x + self._out(self.feed_forward(self.feed_forward_norm(x)), seed, 2)

    def _out(self, x: Tensor, seed: Tensor, site: int) -> Tensor:
        """What a sublayer adds to the residual stream."""
        return dropout(x, self._dropout, seed, site)


class Gpt2(Module):
    """GPT-2 with its language-model head; calling it gives the loss to be minimised.

    ``compute`` is the dtype of matrix products: float32, bfloat16 or float16; variables are float32
    always. A new model holds the initial values that the PyTorch form describes (other random
    numbers than PyTorch's): those of ``seed``.
    """

    def __init__(self, config: Gpt2Config, compute: str = "float32", seed: int = 0) -> None:
        super().__init__()
        self._config = config
        recipe = Recipe(compute, seed, config.init_std, config.layer_norm_eps)
        self.compute = recipe.compute
        self.word = Embedding(recipe, config.vocab, config.hidden)
        self.position = Embedding(recipe, config.max_positions, config.hidden)
        self.layers = [Layer(recipe, config) for _ in range(config.layers)]
        self.final_norm = LayerNorm(recipe, config.hidden)

    def __call__(self, input_ids: Tensor, labels: Tensor, seed: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the next token over all positions: a scalar, float32 always.

        Integer tensors [B, T]; ``labels[b, t]`` is what follows ``input_ids[b, t]``, already
        shifted, and counts for nothing where it is -100. ``seed`` [2], int32, is dropout's: without
        one nothing is dropped.
        """
        rows = tf.cast(self.decode(input_ids, seed), self.compute)
        # The head is the word embedding's own weight.
        scores = tf.matmul(rows, tf.cast(self.word.weight, self.compute), transpose_b=True)
        return cross_entropy(scores, tf.reshape(labels, [-1]))

    def decode(self, input_ids: Tensor, seed: Tensor | None = None) -> Tensor:
        """The last hidden states of ids [B, T] as rows [B * T, h], float32."""
        tokens, config = input_ids.shape[1], self._config
        # Positions are 0..T-1: a slice of the table, no lookup.
        rows = self.word(input_ids) + self.position.weight[:tokens]
        rows = dropout(tf.reshape(rows, (-1, config.hidden)), config.dropout, seed, site=0)
        for number, layer in enumerate(self.layers, start=1):
            rows = self._through(layer, rows, tokens, layer_seed(seed, number))
        return self.final_norm(rows)

    def _through(self, layer: Layer, rows: Tensor, tokens: int, seed: Tensor) -> Tensor:
        if not self._config.checkpoint_activations:
            return layer(rows, tokens, seed)
        return tf.recompute_grad(lambda x: layer(x, tokens, seed))(rows)
