"""The optimizers written out in NumPy, in double precision, straight from where they come from.

One parameter at a time, with plain loops, and sharing no line with the package: what PyTorch's and
TensorFlow's are compared with. Samples to run them on stand here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Trajectory = list[list[list[float]]]  # of each update, of each parameter

LR, DECAY, BETA1, BETA2, EPS, CLIP = 0.05, 0.1, 0.8, 0.95, 1e-3, 1.0
MIN_COEFF, MAX_COEFF = 0.08, 0.5
NAMES = ("sgd", "adam", "adamw", "lamb", "lamb-nvidia", "lamb-deepspeed")
RATES = [LR * factor for factor in (0.5, 1.0, 2.0, 1.0, 0.0, 0.25)]  # one for each update
STEPS = len(RATES)


def weights() -> list[Array]:
    """Matrices and biases; one matrix and one bias are all zero, where a trust ratio is 1; one
    matrix is so small and one so large that DeepSpeed's bounds apply."""
    random = np.random.default_rng(7)
    return [
        random.normal(size=(4, 3)),
        random.normal(size=3),
        np.zeros((2, 2)),
        np.zeros(5),
        1e-4 * random.normal(size=(3, 2)),
        40.0 * random.normal(size=(2, 3)),
    ]


def gradients() -> list[list[Array]]:
    """Of each update, of each parameter. The zero bias has gradient zero at first; some updates'
    global norm is above the clip, some below it."""
    random = np.random.default_rng(11)
    sizes = (3.0, 0.1, 1.0, 0.01, 2.0, 0.3)
    found = [[size * random.normal(size=w.shape) for w in weights()] for size in sizes]
    found[0][3][:] = 0.0
    return found


def clipped(step: list[Array]) -> list[Array]:
    """apex FusedLAMB, stage 1: g / (norm / max_norm if norm > max_norm else 1)."""
    norm = float(np.sqrt(sum(float((g * g).sum()) for g in step)))
    return [g / (norm / CLIP if norm > CLIP else 1.0) for g in step]


def trajectory(name: str, bias_correction: bool) -> list[list[Array]]:
    """Parameters after each update."""
    current = weights()
    memory: list[dict[str, Any]] = [{"m": 0.0 * w, "v": 0.0 * w} for w in current]
    seen = []
    for number, (raw, rate) in enumerate(zip(gradients(), RATES), start=1):
        for i, gradient in enumerate(clipped(raw)):
            decay = DECAY if current[i].ndim > 1 else 0.0
            step = _STEPS[name]
            current[i] = step(current[i], gradient, memory[i], number, rate, decay, bias_correction)
        seen.append([w.copy() for w in current])
    return seen


def _sgd(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, _: bool) -> Array:
    """Momentum as Sutskever's, PyTorch's form: buf = mu buf + g."""
    s["m"] = BETA1 * s["m"] + (g + decay * w)
    return np.asarray(w - lr * s["m"])


def _moments(g: Array, s: Any) -> tuple[Array, Array]:
    s["m"] = BETA1 * s["m"] + (1 - BETA1) * g
    s["v"] = BETA2 * s["v"] + (1 - BETA2) * g * g
    return s["m"], s["v"]


def _corrected(m: Array, v: Array, t: int, on: bool) -> tuple[Array, Array]:
    return (m / (1 - BETA1**t), v / (1 - BETA2**t)) if on else (m, v)


def _adam(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, on: bool) -> Array:
    """Kingma and Ba, algorithm 1, with L2 in the gradient."""
    m, v = _corrected(*_moments(g + decay * w, s), t, on)
    return w - lr * m / (np.sqrt(v) + EPS)


def _adamw(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, on: bool) -> Array:
    """Loshchilov and Hutter, algorithm 2, the schedule multiplier being the learning rate."""
    m, v = _corrected(*_moments(g, s), t, on)
    return w - lr * (m / (np.sqrt(v) + EPS) + decay * w)


def _norm(a: Array) -> float:
    return float(np.sqrt((a * a).sum()))


def _lamb(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, on: bool) -> Array:
    """You et al. 2020, algorithm 2, phi the identity."""
    m, v = _corrected(*_moments(g, s), t, on)
    r = m / (np.sqrt(v) + EPS) + decay * w
    ratio = _norm(w) / _norm(r) if _norm(w) > 0 and _norm(r) > 0 else 1.0
    return w - lr * ratio * r


def _lamb_nvidia(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, on: bool) -> Array:
    """apex multi_tensor_lamb.cu without use_nvlamb: adapted where decay is not 0."""
    m, v = _corrected(*_moments(g, s), t, on)
    r = m / (np.sqrt(v) + EPS) + decay * w
    ratio = lr
    if decay != 0 and _norm(w) != 0 and _norm(r) != 0:
        ratio = lr * (_norm(w) / _norm(r))
    return np.asarray(w - ratio * r)


def _lamb_deepspeed(w: Array, g: Array, s: Any, t: int, lr: float, decay: float, on: bool) -> Array:
    """DeepSpeed fused_lamb_cuda_kernel.cu, mode 1 (epsilon outside the root)."""
    step_size = lr * np.sqrt(1 - BETA2**t) / (1 - BETA1**t) if on else lr
    m, v = _moments(g, s)
    update = m / (np.sqrt(v) + EPS) + decay * w
    coeff = 1.0
    if _norm(w) != 0 and _norm(update) != 0:
        coeff = min(max(_norm(w) / _norm(update), MIN_COEFF), MAX_COEFF)
    return np.asarray(w - step_size * coeff * update)


_STEPS: dict[str, Callable[[Array, Array, Any, int, float, float, bool], Array]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "lamb": _lamb,
    "lamb-nvidia": _lamb_nvidia,
    "lamb-deepspeed": _lamb_deepspeed,
}


def settings(name: str, bias_correction: bool = True) -> dict[str, Any]:
    """These settings as keys of :class:`dlperf_hpc.model.case.Optimizer`."""
    return {
        "name": name,
        "lr": LR,
        "weight_decay": DECAY,
        "beta1": BETA1,
        "beta2": BETA2,
        "eps": EPS,
        "grad_clip": CLIP,
        "bias_correction": bias_correction,
        "min_coeff": MIN_COEFF,
        "max_coeff": MAX_COEFF,
    }


def plain(arrays: list[Any]) -> list[list[float]]:
    """Tensors of any library as flat lists of double precision."""
    return [np.asarray(a, dtype=np.float64).ravel().tolist() for a in arrays]


def expected(name: str, correction: bool = True) -> Trajectory:
    """The trajectory as flat lists: what a library's own is compared with."""
    return [plain(step) for step in trajectory(name, correction)]


def apart(found: Trajectory, wanted: Trajectory) -> float:
    """Largest difference of any parameter tensor, relative to the tensor's size and its move."""
    worst = 0.0
    for step, other in zip(found, wanted, strict=True):
        for a, b in zip(step, other, strict=True):
            x, y = np.array(a), np.array(b)
            assert np.isfinite(x).all()  # max() would pass a NaN over
            worst = max(worst, float(np.linalg.norm(x - y) / (np.linalg.norm(y) + 1e-12)))
    return worst
