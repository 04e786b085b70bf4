"""What BERT and GPT-2 are made of in TensorFlow, as plain ``tf.Module``: no Keras.

- Hidden states are rows [N, h], N = B * T: a matrix product with a three-dimensional left side
  would be a batched one, whose gradient for the weights is slower.
- Variables are float32. Matrix products, and what lies between them, are computed in the compute
  dtype of :class:`Recipe`; LayerNorm, softmax, loss and the residual stream in float32. That is
  what PyTorch's autocast does, so that the two frameworks do the same work.
- Attribute names are those of the PyTorch models: a weight has one name in both.

Shapes: B sequences, T tokens, h hidden, d = h / heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from dlperf_hpc.model.case import Case

_COMPUTE = {"bf16": "bfloat16", "fp16": "float16"}  # float32 for any other precision

IGNORED = -100  # the label that is left out of the mean, as in PyTorch's cross-entropy

Tensor = Any  # TensorFlow carries no types


def prepare(case: Case) -> tuple[str, int]:
    """Compute dtype and seed of the weights that a model is made with."""
    return _COMPUTE.get(case.precision, "float32"), case.seed


class Recipe:
    """What the layers of one model share while they are made: compute dtype and initial values.

    The values of the n-th random variable depend on ``seed`` and n alone, so they are the same on
    every rank, on every device, and whatever else has drawn random numbers.
    """

    def __init__(self, compute: str, seed: int, std: float, layer_norm_eps: float) -> None:
        self.compute = tf.as_dtype(compute)
        self.std = std
        self.layer_norm_eps = layer_norm_eps
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
                    place = name if index == "" else f"{name}.{index}"
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
    """``x @ kernel + bias`` in the compute dtype: [N, inputs] to [N, outputs].

    ``kernel`` is [inputs, outputs]: the transpose of PyTorch's ``weight``.
    """

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
        """Rows of a table that has only a few, looked up by a matrix product.

        The gradient of ``gather`` adds all N rows into the same few places, one after another.
        """
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
    """LayerNorm with its gradient in closed form: a third of the passes over memory that
    differentiating the forward pass step by step takes."""

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
    """Multi-head self-attention with one matrix product for query, key and value.

    Rows [B * T, h] to [B * T, h]. ``causal``: a token attends to itself and to those before it.
    """

    def __init__(
        self, recipe: Recipe, hidden: int, heads: int, dropout: float, *, causal: bool, scale: float
    ) -> None:
        super().__init__()
        self._heads = heads
        self._dropout = dropout
        self._causal = causal
        self.qkv = Dense(recipe, hidden, 3 * hidden)
        self.out = Dense(recipe, hidden, hidden, scale)

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

    def __init__(self, recipe: Recipe, hidden: int, ffn: int, bend: Any, scale: float) -> None:
        super().__init__()
        self._bend = bend
        self.up = Dense(recipe, hidden, ffn)
        self.down = Dense(recipe, ffn, hidden, scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._bend(self.up(x)))


def layer_seed(seed: Tensor, number: int) -> Tensor:
    """What a layer's dropout begins with, of a forward pass's; numbers from 1."""
    return None if seed is None else seed + (number, 0)


def dropout(x: Tensor, rate: float, seed: Tensor, site: int) -> Tensor:
    """``x`` with each element 0 with probability ``rate``, the others scaled to keep the mean.

    float32 in and out: in bfloat16 0.1 would be 0.1016, and the scale too small by as much. The
    same seed [2] and ``site`` (a number within the layer) drop the same again, as recomputation
    must. Nothing is dropped without a seed: models hold no random state.
    """
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
