"""BERT and GPT-2 in TensorFlow: the models of ``train/torch/models.py``, number for number.

Plain ``tf.Module``, no Keras. Nothing waits for the device or branches on data, and all shapes are
known when a model is traced: XLA compiles it whole.

- Hidden states are rows [N, h], N = B * T: a matrix product with a three-dimensional left side
  would be a batched one, whose gradient for the weights is slower.
- Variables are float32. Matrix products, and what lies between them, are computed in the compute
  dtype of :class:`Recipe`; LayerNorm, softmax, loss and the residual stream in float32. That is
  what PyTorch's autocast does, so that the two frameworks do the same work.
- Attribute names are those of the PyTorch models: a weight has one name in both.

Shapes: B sequences, T tokens, M masked positions, h hidden, d = h / heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Union

import tensorflow as tf

from dlperf_hpc.model.case import Case
from dlperf_hpc.train.workloads.bert import BertConfig
from dlperf_hpc.train.workloads.gpt2 import Gpt2Config

Config = Union[BertConfig, Gpt2Config]

_COMPUTE = {"bf16": "bfloat16", "fp16": "float16"}  # float32 for any other precision

IGNORED = -100  # the label that is left out of the mean, as in PyTorch's cross-entropy

Tensor = Any  # TensorFlow carries no types


def build(config: Config, case: Case) -> Module:
    """A new model in the case's precision, with the initial values of the case's seed."""
    compute = _COMPUTE.get(case.precision, "float32")
    if isinstance(config, Gpt2Config):
        return Gpt2(config, compute, case.seed)
    return BertForPreTraining(config, compute, case.seed)


class Recipe:
    """What the layers of one model share while they are made. The values of the n-th random
    variable depend on ``seed`` and n alone: they are the same on every rank and every device."""

    def __init__(self, config: Config, compute: str, seed: int) -> None:
        self.compute = tf.as_dtype(compute)
        self.std = config.init_std
        self.layer_norm_eps = config.layer_norm_eps
        self._seed = seed
        self._drawn = 0

    def normal(self, name: str, shape: tuple[int, int], scale: float = 1.0) -> tf.Variable:
        """A float32 variable from N(0, (scale * std)^2)."""
        seed = (self._seed, self._drawn)
        self._drawn += 1
        values = tf.random.stateless_normal(shape, seed, stddev=scale * self.std)
        return tf.Variable(values, name=name)

    def constant(self, name: str, size: int, value: float = 0.0) -> tf.Variable:
        """A float32 vector variable of one value."""
        return tf.Variable(tf.fill([size], value), name=name)


class Module(tf.Module):  # type: ignore[misc]
    """A ``tf.Module`` that names its variables by their place, as PyTorch does."""

    def named_variables(self) -> Iterator[tuple[str, tf.Variable]]:
        """(``layers.0.attention.qkv.kernel``, variable) for each variable, in order of creation."""
        for name, value in list(vars(self).items()):
            if isinstance(value, tf.Variable):
                yield name, value
            parts = enumerate(value) if isinstance(value, (list, tuple)) else [("", value)]
            for index, part in parts:
                if isinstance(part, Module):
                    place = f"{name}.{index}".rstrip(".")
                    for inner, variable in part.named_variables():
                        yield f"{place}.{inner}", variable

    def state_dict(self) -> dict[str, Tensor]:
        """Every weight under the name and in the shape that the PyTorch model has for it."""
        return {
            _torch_name(name): tf.transpose(variable) if _is_kernel(name) else tf.identity(variable)
            for name, variable in self.named_variables()
        }

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`: NumPy arrays, or tensors."""
        for name, variable in self.named_variables():
            array = arrays[_torch_name(name)]
            variable.assign(tf.transpose(array) if _is_kernel(name) else array)


def _is_kernel(name: str) -> bool:
    return name.rpartition(".")[2] == "kernel"


def _torch_name(name: str) -> str:
    """``nsp.kernel`` is ``nsp.weight`` there, and transposed; all other names are the same."""
    return f"{name[: -len('kernel')]}weight" if _is_kernel(name) else name


class Dense(Module):
    """``x @ kernel + bias`` in the compute dtype: [N, inputs] to [N, outputs]."""

    def __init__(self, recipe: Recipe, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.compute = recipe.compute
        self.kernel = recipe.normal("kernel", (inputs, outputs), scale)
        self.bias = recipe.constant("bias", outputs)

    def __call__(self, x: Tensor) -> Tensor:
        kind = self.compute
        product = tf.matmul(tf.cast(x, kind), tf.cast(self.kernel, kind))
        return tf.nn.bias_add(product, tf.cast(self.bias, kind))


class Embedding(Module):
    """A table of float32 rows."""

    def __init__(self, recipe: Recipe, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = recipe.normal("weight", (rows, columns))

    def __call__(self, ids: Tensor) -> Tensor:
        # Read first: gathering from a variable makes TensorFlow copy it wherever else it is read,
        # and the head reads all of it.
        return tf.gather(tf.convert_to_tensor(self.weight), ids)

    def few(self, ids: Tensor) -> Tensor:
        """Rows of a table that has only a few, looked up by a matrix product. The gradient of
        ``gather`` adds all N rows into the same few places, one after another."""
        rows = self.weight.shape[0]
        return tf.matmul(tf.one_hot(ids, rows, dtype=tf.float32), self.weight)


class LayerNorm(Module):
    """Over the last dimension, in and out float32: [N, h] to [N, h]."""

    def __init__(self, recipe: Recipe, size: int) -> None:
        super().__init__()
        self._eps = recipe.layer_norm_eps
        self.weight = recipe.constant("weight", size, 1.0)
        self.bias = recipe.constant("bias", size)

    def __call__(self, x: Tensor) -> Tensor:
        # Read here: within a custom gradient variables would need an argument of their own.
        return _layer_norm(
            tf.cast(x, tf.float32), tf.identity(self.weight), tf.identity(self.bias), self._eps
        )


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm with its gradient in closed form: a third of the passes over memory."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def normalise(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        centred = x - mean
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        inverse = tf.math.rsqrt(variance + eps)
        normal = centred * inverse

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scaled = upstream * weight
            along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
            level = tf.reduce_mean(scaled, axis=-1, keepdims=True)
            to_x = inverse * (scaled - level - normal * along)
            return to_x, tf.reduce_sum(upstream * normal, 0), tf.reduce_sum(upstream, 0)

        return normal * weight + bias, gradient

    return normalise(x, weight, bias)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def gelu(x: Tensor) -> Any:
    """Exact gelu, x * Phi(x), computed in float32; of the forward pass it keeps ``x`` alone."""
    wide = tf.cast(x, tf.float32)

    def below() -> Tensor:
        return 0.5 * (1.0 + tf.math.erf(wide * math.sqrt(0.5)))

    def gradient(upstream: Tensor) -> Tensor:
        density = tf.exp(-0.5 * tf.square(wide)) * (1 / math.sqrt(2 * math.pi))
        slope = below() + wide * density
        return tf.cast(tf.cast(upstream, tf.float32) * slope, x.dtype)

    return tf.cast(wide * below(), x.dtype), gradient


@tf.custom_gradient  # type: ignore[untyped-decorator]
def gelu_tanh(x: Tensor) -> Any:
    """Gelu in its tanh approximation (``gelu_new``), computed in float32; keeps ``x`` alone."""
    wide = tf.cast(x, tf.float32)
    factor, cubic = math.sqrt(2 / math.pi), 0.044715

    def bend() -> Tensor:
        return tf.tanh(factor * wide * (1.0 + cubic * tf.square(wide)))

    def gradient(upstream: Tensor) -> Tensor:
        bent = bend()
        inner = factor * (1.0 + 3 * cubic * tf.square(wide))
        slope = 0.5 * (1.0 + bent) + 0.5 * wide * (1.0 - tf.square(bent)) * inner
        return tf.cast(tf.cast(upstream, tf.float32) * slope, x.dtype)

    return tf.cast(0.5 * wide * (1.0 + bend()), x.dtype), gradient


class SelfAttention(Module):
    """Multi-head self-attention, rows [B * T, h] to [B * T, h]; ``causal`` as in PyTorch's."""

    def __init__(self, recipe: Recipe, config: Config, causal: bool, scale: float) -> None:
        super().__init__()
        self._heads = config.heads
        self._dropout = config.dropout
        self._causal = causal
        self.qkv = Dense(recipe, config.hidden, 3 * config.hidden)
        self.out = Dense(recipe, config.hidden, config.hidden, scale)

    def __call__(self, x: Tensor, tokens: int, mask: Tensor | None, seed: Tensor) -> Tensor:
        """``mask`` [B, 1, 1, T] is True for tokens that may be attended to; None: for all."""
        hidden = x.shape[-1]
        depth = hidden // self._heads
        split = tf.reshape(self.qkv(x), (-1, tokens, 3, self._heads, depth))
        query, key, value = tf.unstack(tf.transpose(split, (2, 0, 3, 1, 4)))  # [B, heads, T, d]
        scores = tf.matmul(query * (1 / math.sqrt(depth)), key, transpose_b=True)
        shares = tf.nn.softmax(self._hide(tf.cast(scores, tf.float32), mask))
        shares = tf.cast(dropout(shares, self._dropout, seed, site=0), value.dtype)
        context = tf.transpose(tf.matmul(shares, value), (0, 2, 1, 3))
        return self.out(tf.reshape(context, (-1, hidden)))

    def _hide(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if self._causal:
            place = tf.range(scores.shape[-1])
            mask = place[:, None] >= place[None, :]
        return scores if mask is None else tf.where(mask, scores, -math.inf)


class FeedForward(Module):
    """Dense, gelu, dense: [N, h] to [N, h]."""

    def __init__(self, recipe: Recipe, config: Config, bend: Any, scale: float) -> None:
        super().__init__()
        self._bend = bend
        self.up = Dense(recipe, config.hidden, config.ffn)
        self.down = Dense(recipe, config.ffn, config.hidden, scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._bend(self.up(x)))


def layer_seed(seed: Tensor, number: int) -> Tensor:
    """What a layer's dropout begins with, of a forward pass's; numbers from 1."""
    return None if seed is None else seed + (number, 0)


def dropout(x: Tensor, rate: float, seed: Tensor, site: int) -> Tensor:
    """``x`` with each element 0 with probability ``rate``, the others scaled to keep the mean.
    float32 in and out: in bfloat16 0.1 would be 0.1016, and the scale too small by as much. The
    same seed [2] and ``site`` (a number within the layer) drop the same again, as recomputation
    must. Nothing is dropped without a seed: models hold no random state."""
    x = tf.cast(x, tf.float32)
    if rate == 0 or seed is None:
        return x
    noise = tf.random.stateless_uniform(tf.shape(x), seed + (0, site))
    return tf.where(noise >= rate, x * (1 / (1 - rate)), 0.0)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows of scores [N, V] whose label [N] is not -100, computed in float32."""
    counted = labels != IGNORED
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.where(counted, labels, tf.zeros_like(labels)), logits=tf.cast(scores, tf.float32)
    )
    weight = tf.cast(counted, tf.float32)
    return tf.reduce_sum(each * weight) / tf.reduce_sum(weight)


class Layer(Module):
    """One layer; its LayerNorms before the sublayers, which end in ``scale``, or after the sums."""

    def __init__(
        self,
        recipe: Recipe,
        config: Config,
        bend: Any,
        *,
        pre_norm: bool,
        causal: bool,
        scale: float,
    ) -> None:
        super().__init__()
        self._pre_norm = pre_norm
        self._dropout = config.dropout
        self.attention = SelfAttention(recipe, config, causal, scale)
        self.attention_norm = LayerNorm(recipe, config.hidden)
        self.feed_forward = FeedForward(recipe, config, bend, scale)
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


class Embeddings(Module):
    """Word, position and segment embeddings, summed and normalised: ids [B, T] to [B * T, h]. The
    LayerNorm stands here in the pre-LayerNorm model too, as in ``bing_bert``."""

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


class MlmHead(Module):
    """Scores [B * M, V] for gathered positions [B * M, h], by the word embedding's own weight."""

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
    numbers than PyTorch's): those of ``seed``."""

    def __init__(self, config: BertConfig, compute: str = "float32", seed: int = 0) -> None:
        super().__init__()
        self._config = config
        recipe = Recipe(config, compute, seed)
        self.embeddings = Embeddings(recipe, config)
        pre_norm = config.layer_norm == "pre"
        self.layers = [
            Layer(recipe, config, gelu, pre_norm=pre_norm, causal=False, scale=1.0)
            for _ in range(config.layers)
        ]
        if pre_norm:
            self.final_norm = LayerNorm(recipe, config.hidden)
        self.pooler = Dense(recipe, config.hidden, config.hidden)
        self.mlm = MlmHead(recipe, config)
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
        """Mean MLM cross-entropy over the masked positions + mean NSP cross-entropy: a scalar,
        float32 always. Arguments as for the PyTorch form; ``seed`` [2], int32, is dropout's:
        without one nothing is dropped."""
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


class Gpt2(Module):
    """GPT-2 with its language-model head; calling it gives the loss to be minimised. ``compute``
    and the initial values are as for BERT."""

    def __init__(self, config: Gpt2Config, compute: str = "float32", seed: int = 0) -> None:
        super().__init__()
        self._config = config
        recipe = Recipe(config, compute, seed)
        self.compute = recipe.compute
        self.word = Embedding(recipe, config.vocab, config.hidden)
        self.position = Embedding(recipe, config.max_positions, config.hidden)
        ends = 1 / math.sqrt(2 * config.layers)
        self.layers = [
            Layer(recipe, config, gelu_tanh, pre_norm=True, causal=True, scale=ends)
            for _ in range(config.layers)
        ]
        self.final_norm = LayerNorm(recipe, config.hidden)

    def __call__(self, input_ids: Tensor, labels: Tensor, seed: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the next token over all positions; ``seed`` as for BERT."""
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
            return layer(rows, tokens, None, seed)
        return tf.recompute_grad(lambda x: layer(x, tokens, None, seed))(rows)
