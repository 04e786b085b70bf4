"""Jobs that start after others: sbatch's ``--dependency``."""

from __future__ import annotations

from collections.abc import Sequence

from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import Issue, SpecError

_OPTION = "dependency"


def with_dependency(site: Site, jobs: Sequence[str]) -> Site:
    """The profile whose jobs start when all these have ended, well or not, and when what its own
    ``sbatch`` table asks for holds too. SpecError where that table's dependency is one of several.
    """
    if not jobs:
        return site
    # sbatch understands abbreviations.
    own = [name for name in site.sbatch if _OPTION.startswith(name.replace("_", "-"))]
    earlier = [str(site.sbatch[name]) for name in own]
    if any("?" in words for words in earlier):
        message = f"{', '.join(earlier)} ('?': any of these), and a job is to wait for others too"
        hint = "sbatch takes one or the other: leave out --after (or --report), or this key"
        raise SpecError("site profile", [Issue(f"sbatch.{own[0]}", message, hint)])
    options = {name: value for name, value in site.sbatch.items() if name not in own}
    words = ",".join([*earlier, ":".join(["afterany", *jobs])])
    return site.model_copy(update={"sbatch": {**options, _OPTION: words}})
