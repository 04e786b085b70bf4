"""What is on disk of a sweep."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dlperf_hpc.files import open_regular


def unpacked(path: Path) -> contextlib.AbstractContextManager[Path]:
    """A sweep's directory, also of an archive; any other path as it is. The reader of archives is
    loaded for a file that begins as a ZIP file does. LedgerError as ``archives.unpacked``."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        if file.read(2) == b"PK":
            from dlperf_hpc.records import archives

            return archives.unpacked(path)
    return contextlib.nullcontext(path)
