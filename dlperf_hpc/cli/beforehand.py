"""What ``sweep`` looks at before it submits anything of a new sweep, and what it says of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.errors import SiteError, printable

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import CheckResult, Engine
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.manifest import Manifest


def look(spec: str, manifest: Manifest, site: Site, engine: Engine, root: Path) -> None:
    """Say on stderr what may be wrong; SiteError for what certainly is."""
    from dlperf_hpc.doctor.beforehand import examine

    found = list(examine(manifest, site, engine, root))
    for result in found:
        if result.grade != "FAIL":
            print(f"note: {_line(result)}", file=sys.stderr)
    certain = [_line(result) for result in found if result.grade == "FAIL"]
    if certain:
        listed = "".join(f"\n  {line}" for line in certain)
        raise SiteError(
            f"nothing was submitted, because no run of this could end well:{listed}\n"
            f"`dlperf doctor {spec}` checks more, with a short job; --no-check submits all the same"
        )


def _line(result: CheckResult) -> str:
    named = f" of environment {result.environment}" if result.environment else ""
    return printable(f"{result.check}{named}: {result.seen}: {result.to_do}")
