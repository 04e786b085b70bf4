"""Coverage-guided fuzzing (atheris, libFuzzer) of the scanner and of interpretation.

::

    export FUZZ_SECONDS=3600 PYTHONPATH=tests/support:tests/campaigns
    python -m fuzz.fuzz_scan [libFuzzer's options]

Its inputs gather in ``$FUZZ_DIR`` (build/fuzz). What breaks it is written to ``findings`` there:
mend it, then copy the file to ``tests/campaigns/fuzz/findings``, where the tests replay it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

with atheris.instrument_imports(include=["dlperf_hpc"]):
    from dlperf_hpc.logs.formats import formats
    from fuzz.mutation import mutated
    from fuzz.seeds import LONGEST, dictionary, seeds
    from fuzz.target import FINDINGS, check

    formats()  # imports them


def main() -> None:
    """Run until the time is over (libFuzzer then exits 0), or until something breaks."""
    root = Path(os.environ.get("FUZZ_DIR", "build/fuzz"))
    inputs, findings = root / "inputs", root / "findings"
    for folder in (inputs, findings):
        folder.mkdir(parents=True, exist_ok=True)
    real = os.environ.get("DLPERF_REAL_LOGS")
    lines: dict[bytes, None] = {}
    for number, seed in enumerate(seeds(Path(real) if real else None)):
        (inputs / f"seed{number:03d}").write_bytes(seed)
        lines.update(dict.fromkeys(seed.split(b"\n")))
    known = [line for line in lines if line]

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.4:
            return bytes(atheris.Mutate(data, longest))
        for _ in range(random.choice((1, 1, 2, 4))):
            data = mutated(data, known, random)[:longest]
        return data

    for case in FINDINGS.iterdir():
        (inputs / case.name).write_bytes(case.read_bytes())
    (root / "dictionary").write_text(dictionary())
    options = [
        f"-max_total_time={os.environ.get('FUZZ_SECONDS', '3600')}",
        f"-dict={root / 'dictionary'}",
        f"-artifact_prefix={findings}/",
        f"-max_len={LONGEST}",
        "-rss_limit_mb=1500",
        "-timeout=20",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, *sys.argv[1:], str(inputs)], check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
