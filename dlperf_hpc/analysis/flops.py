"""Model FLOPs: the arithmetic that one sample needs, and what a throughput means by it.

TFLOPS per device, share of the accelerator's peak, and what cannot be: where model, sequence
length, precision or accelerator is not known, there is no figure and no flag.

Only products of matrices (and convolutions) count, a multiply-add as two FLOPs, and the backward
pass as twice the forward one; recomputation, optimizer, embeddings, normalisation, softmax and
activations add nothing (PaLM, arXiv:2204.02311, appendix B; Narayanan et al. 2021,
arXiv:2104.04473). By the same convention the attention of GPT is not halved for its causal mask,
although a kernel may leave out half of it. Tokens are those of the padded sequence: a program that
packs or unpads sequences does less work per sample than is counted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from dlperf_hpc.analysis import machines
from dlperf_hpc.analysis.flags import Flag
from dlperf_hpc.analysis.machines import device_names
from dlperf_hpc.model.case import Case, CaseFacts, ObservedCase
from dlperf_hpc.model.checks import is_number
from dlperf_hpc.model.result import RunResult

_LONGEST_SEQUENCE = 10**7
_SCORES_ALL = frozenset(("megatron", "transformers"))
"""Frameworks whose BERT puts the MLM head on every position; the others gather the masked ones."""


@dataclass(frozen=True)
class Transformer:
    """``layers`` of width ``hidden``, a feed-forward part of 4 x hidden, and a vocabulary head.

    ``mlm`` says that it is trained as BERT is: the head scores masked positions, behind one
    more hidden x hidden product; else it scores every position, as GPT's does.
    """

    layers: int
    hidden: int
    vocab: int
    mlm: bool

    def flops(self, seq_len: int, scored: int | None = None) -> float:
        """Of one sequence of T tokens, forward and backward, with the head on M positions.

        ``6 * [12*L*h^2 * T + (h^2 + V*h) * M] + 12 * L * h * T^2``, with L layers, hidden size h
        and vocabulary V; no h^2 in the head of GPT. That is T * (6*N + 12*L*H*Q*T), with N the
        numbers in those matrices and H heads of size Q (H*Q = h), where all positions are scored.
        ``scored`` is M: by default all of GPT's, and 5/32 of BERT's, rounded up: 20 of 128, 80 of
        512, ``max_predictions_per_seq`` of Google's and NVIDIA's data sets.
        """
        if scored is None:
            scored = (5 * seq_len + 31) // 32 if self.mlm else seq_len
        h = self.hidden
        head = self.vocab * h + (h * h if self.mlm else 0)
        products = 12 * self.layers * h * h * seq_len + head * scored
        return float(6 * products + 12 * self.layers * h * seq_len * seq_len)


@dataclass(frozen=True)
class ConvNet:
    """``macs``: multiply-adds of one image of 224 x 224, forward."""

    macs: int

    def flops(self, seq_len: int | None = None, scored: int | None = None) -> float:
        """Of one image, forward and backward: 3 x 2 x ``macs``. It has no sequence."""
        return 6.0 * self.macs


Architecture = Union[Transformer, ConvNet]

_ARCHITECTURES: Mapping[str, Architecture] = {
    # Devlin et al. 2018 (arXiv:1810.04805); the vocabulary of 30522 padded to a multiple of 8, as
    # ours is: without the padding it is 0.01 % less at most. bert-tiny is this package's own, for
    # CPUs. DLPerf's "bert" is base.
    **dict.fromkeys(("bert", "bertbase"), Transformer(12, 768, 30528, mlm=True)),
    "bertlarge": Transformer(24, 1024, 30528, mlm=True),
    "berttiny": Transformer(2, 128, 30528, mlm=True),
    # Radford et al. 2019 (GPT-2); the vocabulary as published: padded to 50304 it is 0.03 % more.
    # gpt2-tiny is this package's own, for CPUs.
    **dict.fromkeys(
        ("gpt2", "gpt2small", "gpt2124m", "gpt2117m"), Transformer(12, 768, 50257, mlm=False)
    ),
    **dict.fromkeys(
        ("gpt2medium", "gpt2355m", "gpt2350m", "gpt2345m"), Transformer(24, 1024, 50257, mlm=False)
    ),
    **dict.fromkeys(("gpt2large", "gpt2774m"), Transformer(36, 1280, 50257, mlm=False)),
    **dict.fromkeys(("gpt2xl", "gpt21.5b"), Transformer(48, 1600, 50257, mlm=False)),
    "gpt2tiny": Transformer(2, 128, 50257, mlm=False),
    # 53 convolutions and the last layer. v1.5 (and v1b) has the stride of a block in its 3 x 3
    # convolution; torchvision states 4.09 G. v1 has it in the 1 x 1 before: He et al. 2015
    # (arXiv:1512.03385), table 1, states 3.8 G. A bare "resnet50" is taken as v1.5, which most
    # programs mean; if it is v1, its figures come out 6 % too high.
    **dict.fromkeys(
        ("resnet50", "rn50", "r50", "resnet50v1.5", "resnet50v15", "resnet50v1b"),
        ConvNet(4_089_184_256),
    ),
    "resnet50v1": ConvNet(3_857_973_248),
}
# Words of a name that leave the arithmetic as it is.
_IDLE = frozenset(
    ("adam", "adamw", "lamb", "phase1", "phase2", "pretrain", "pretraining", "sgd", "train")
    + ("training", "uncased")
)
_WORD = re.compile(r"[a-z0-9.]+")


def architecture(model: str) -> Architecture | None:
    """By any of the names that logs give it (``bert_base``, ``bert-base-adam-training``, ``rn50``,
    ``openai-community/gpt2``); None for a name that is not known for sure."""
    words = _WORD.findall(model[:200].rpartition("/")[2].lower())
    return _ARCHITECTURES.get("".join(word for word in words if word not in _IDLE))


def flops_per_sample(model: str, seq_len: int | None, scored: int | None = None) -> float | None:
    """Model FLOPs of one sample (a sequence, an image), forward and backward.

    ``scored`` is on how many positions of a BERT the MLM head stands, by default the masked ones.
    None for a model that is not known, or for a sequence of unknown length.
    """
    known = architecture(model)
    if isinstance(known, ConvNet):
        return known.flops()
    if known is None or seq_len is None or not 0 < seq_len <= _LONGEST_SEQUENCE:
        return None
    return known.flops(seq_len, scored)


def flops_of_case(case: CaseFacts) -> float | None:
    """Model FLOPs of one sample of a case by the name of its model. None where model or sequence
    length are not known."""
    scored = case.seq_len if case.framework in _SCORES_ALL else None
    return flops_per_sample(case.model, case.seq_len, scored)


def flops_of_runs(results: Sequence[RunResult]) -> float | None:
    """Model FLOPs of one sample of the runs of one case: as their logs tell (the workload itself
    states them), else by the name of the model. None where neither is known, or where two logs tell
    different numbers."""
    stated: list[Any] = [result.facts.get("flops_per_sample") for result in results]
    known = {float(each) for each in stated if is_number(each) and each > 0}
    if not known and results:
        return flops_of_case(results[0].run.case)
    return known.pop() if len(known) == 1 else None


def tflops_per_device(
    case: CaseFacts, samples_per_s: float, flops: float | None = None
) -> float | None:
    """Model TFLOPS of one device: samples/s over all devices x FLOPs per sample / devices.

    ``flops`` are those of one sample; by the name of the case's model if None.
    """
    flops = flops or flops_of_case(case)
    if flops is None or not samples_per_s > 0:
        return None
    value = samples_per_s * flops / case.topology.devices / 1e12
    return value if math.isfinite(value) else None


def mfu(
    case: CaseFacts, samples_per_s: float, accelerator: str | None, flops: float | None = None
) -> float | None:
    """Model FLOPS utilisation: share of the accelerator's dense peak in the precision, 1 = all.

    ``accelerator`` is a device's name, or a person's word for it (:func:`.machines.accelerator`);
    ``flops`` as in :func:`tflops_per_device`.
    """
    tflops = tflops_per_device(case, samples_per_s, flops)
    peak = machines.peak(accelerator or "", case.precision)
    return None if tflops is None or peak is None else tflops / peak


def of_physics(
    case: CaseFacts, samples_per_s: float, accelerator: str | None, flops: float | None = None
) -> list[Flag]:
    """``over-peak`` for more than the device can do, ``near-peak`` for more than training does.

    ``samples_per_s`` is over all devices: give the fastest run's, for each must be possible.
    ``flops`` as in :func:`tflops_per_device`.
    """
    flops = flops or flops_of_case(case)
    tflops, name = tflops_per_device(case, samples_per_s, flops), accelerator or ""
    known, peak = machines.accelerator(name), machines.peak(name, case.precision)
    if flops is None or tflops is None or known is None or peak is None:
        return []
    share = tflops / peak
    if share <= machines.CEILING:
        return []
    figures = (
        f"{samples_per_s:.2f} samples/s are {tflops:.4g} TFLOPS per device ({flops / 1e9:.5g} "
        f"GFLOP per {_sample(case)}), {100 * share:.1f} % of the dense {case.precision} peak of "
        f"{known.name}, {peak:g}"
    )
    doubts = ", ".join(_doubts(case, tflops, name))
    if share > 1:
        return [Flag("over-peak", f"{figures}: impossible; look for {doubts}")]
    ceiling = f"{100 * machines.CEILING:.0f} %"
    most = f"more than the {ceiling} that matrix products alone hardly pass"
    return [Flag("near-peak", f"{figures}: {most}; look for {doubts}")]


def _image_size(case: CaseFacts) -> int:
    """Rows of an image for which FLOPs are known: a case of our own says how many, and others'
    are counted with 224; 0 if a sample is no image."""
    found: int = 224 if isinstance(architecture(case.model), ConvNet) else 0
    if isinstance(case, Case) and not case.launch:  # a program's option may mean anything
        found = dict(case.options).get("image_size", found)
    return found


def _sample(case: CaseFacts) -> str:
    if size := _image_size(case):
        return f"image of {size} x {size}"
    return f"sequence of {case.seq_len} tokens, padding included"


def _doubts(case: CaseFacts, tflops: float, accelerator: str) -> Iterator[str]:
    """What may be otherwise than it was taken; a run of our own has checked its precision."""
    if isinstance(case, ObservedCase):
        if case.precision in ("fp32", "float32"):
            tf32 = machines.peak(accelerator, "tf32")
            if tf32 is not None and tflops <= tf32:
                yield f"TF32 (it would be {100 * tflops / tf32:.1f} % of that peak, {tf32:g})"
            yield "mixed precision"
        yield "more devices than were counted"
    if _image_size(case):
        yield from ("smaller images", "convolutions done with fewer operations (Winograd)")
    else:
        yield "sequences that are packed, unpadded or shorter"
    yield "samples counted by a wrong factor"


def accelerator_of(results: Iterable[RunResult], said: str | None = None) -> str | None:
    """The device that the runs' own logs name, else ``said``, a person's word.

    None if runs or ranks were on accelerators of different peaks: no one peak is theirs.
    """
    names = [name for result in results for name in device_names(result)]
    if not names:
        return said
    found = {*map(machines.accelerator, names)}
    return names[0] if len(found) == 1 else None
