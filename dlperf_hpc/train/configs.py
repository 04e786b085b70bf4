"""Sizes of models, for the login node's arithmetic and for the model of each framework alike.

Standard library only and importable on Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYER_NORMS = ("post", "pre")


@dataclass(frozen=True)
class BertConfig:
    """One BERT: sizes, and where its LayerNorms stand.

    ``layer_norm`` is "post" (after each residual sum: Google, NVIDIA) or "pre" (before attention
    and feed-forward, and once after the last layer: DeepSpeed's ``bing_bert``). ``dropout`` is the
    probability for hidden states and for attention probabilities alike. ``vocab`` is 30522 padded
    to a multiple of 8, as tensor cores like it.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int = 30528
    max_positions: int = 512
    types: int = 2
    layer_norm: str = "post"
    dropout: float = 0.1
    init_std: float = 0.02
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        if self.layer_norm not in LAYER_NORMS:
            raise ValueError(f"layer_norm is {self.layer_norm!r}: write one of {LAYER_NORMS}")


@dataclass(frozen=True)
class Gpt2Config:
    """One GPT-2: LayerNorm before each sublayer and once after the last, learned positions.

    ``vocab`` is 50257 padded to a multiple of 128, as tensor cores like it; the last 47 rows are
    never in the data. ``dropout`` is the probability for embeddings, attention probabilities and
    the sublayers' outputs alike. ``checkpoint_activations`` keeps only the input of each layer for
    the backward pass, which computes the layer again: less memory, and a third more arithmetic in
    the layers.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int = 50304
    max_positions: int = 1024
    dropout: float = 0.1
    init_std: float = 0.02
    layer_norm_eps: float = 1e-5
    checkpoint_activations: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
