"""DeepSpeed's own LAMB, its PyTorch form for devices without CUDA, on the samples of
``optimizer_references``. Writes one JSON object to the file named by its argument.

DeepSpeed carries it for another accelerator (``op_builder/npu``), but it is plain PyTorch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import optimizer_references as reference
import torch
from deepspeed.ops.op_builder.npu.fused_lamb import NPUFusedLamb


def trajectory(bias_correction: bool) -> list[list[list[float]]]:
    weights = [torch.tensor(w) for w in reference.weights()]
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    seen = []
    for number, (raw, rate) in enumerate(zip(reference.gradients(), reference.RATES), start=1):
        for weight, gradient, (first, second) in zip(weights, reference.clipped(raw), moments):
            settings: dict[str, Any] = {
                "lr": rate,
                "beta1": reference.BETA1,
                "beta2": reference.BETA2,
                "max_coeff": reference.MAX_COEFF,
                "min_coeff": reference.MIN_COEFF,
                "eps": reference.EPS,
                "combined_scale": 1.0,
                "step": number,
                "eps_mode": 1,
                "bias_correction": int(bias_correction),
                "weight_decay": reference.DECAY if weight.ndim > 1 else 0.0,
            }
            nothing = torch.tensor([])
            NPUFusedLamb.lamb(weight, nothing, first, second, torch.tensor(gradient), **settings)
        seen.append([w.flatten().tolist() for w in weights])
    return seen


def main() -> None:
    found = {str(on): trajectory(on) for on in (True, False)}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
