"""Products are computed as a case asks, and stay so when the model was compiled."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.sweepfile.case import MODES
from dlperf_hpc.train.torch.device import AUTOCAST, observed_fp32


def run(device: str) -> Iterator[Finding]:
    """fp32 and tf32 before and after a compiled step; the dtype that autocast computes in."""
    for asked in ("fp32", "tf32"):
        try:
            mode = MODES[device == "cuda"]
            with tiny.session(tiny.case("bert-tiny", device, asked, mode=mode)) as session:
                session.iterate()
                session.iterate()
                found = observed_fp32(session.device)
                flag = torch.backends.cuda.matmul.allow_tf32  # raises where both APIs were mixed
        except DeviceError as error:
            yield skipped(asked, str(error))
            continue
        value = f"products in {found}, allow_tf32 {flag}, after a compiled step"
        yield judged(asked, value, asked, found == asked and flag == (asked == "tf32"))
    for asked, kind in AUTOCAST.items() if device == "cuda" else [("bf16", torch.bfloat16)]:
        with tiny.session(tiny.case("bert-tiny", device, asked)) as session, session.autocast():
            square = torch.ones(8, 8, device=session.device)
            found_kind = (square @ square).dtype
        yield judged(asked, f"products in {found_kind}", f"{kind}", found_kind == kind)
