"""A wheel of this package, made of what an installed wheel has left on the disk."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from dlperf_hpc.errors import SiteError

# What pip, not the wheel, puts beside the metadata.
_OF_THE_INSTALLER = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def repack(directory: Path) -> Path:
    """Write the wheel into ``directory``; its path. SiteError if this package is not installed.

    Another environment gets exactly this version so, also where no package index can be reached.
    """
    try:
        installed = distribution("dlperf_hpc")
    except PackageNotFoundError:
        raise SiteError(
            "dlperf_hpc is not installed in this Python, and no checkout: install it with pip"
        ) from None
    target = directory / f"dlperf_hpc-{installed.version}-py3-none-any.whl"
    lines = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _files(installed):
            content = path.read_bytes()
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(content)}\n")
        record = f"{_info(installed)}/RECORD"
        archive.writestr(record, "".join([*lines, f"{record},,\n"]))
    return target


def _info(installed: Distribution) -> str:
    return f"dlperf_hpc-{installed.version}.dist-info"


def _files(installed: Distribution) -> list[tuple[str, Path]]:
    """Name in the wheel and place on the disk of every file that the wheel had."""
    top = {"dlperf_hpc", _info(installed)}
    return [
        (file.as_posix(), Path(str(installed.locate_file(file))))
        for file in installed.files or ()
        if file.parts[0] in top and file.suffix != ".pyc" and file.name not in _OF_THE_INSTALLER
    ]
