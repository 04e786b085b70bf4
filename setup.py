"""What pyproject.toml cannot say: a wheel also brings the top-level folders and its commit.

They lie in ``dlperf_hpc/bundled`` there. An editable installation needs neither: the package finds
the folders beside itself, and git knows the commit.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PLACE = Path("dlperf_hpc", "bundled")
FOLDERS = {
    "sweeps": ("*.toml",),
    "programs": ("*.toml",),
    "slurm": ("*.toml", "*.sh", "*.md", "onebox/*.py"),
    "requirements": ("*.txt", "*.sh", "*.py"),
}
sys.path.insert(0, str(ROOT))  # a build backend is not run from here


def bundled() -> list[Path]:
    """The files of the top-level folders, relative to the root."""
    patterns = [f"{folder}/{each}" for folder, many in FOLDERS.items() for each in many]
    return sorted(path.relative_to(ROOT) for each in patterns for path in ROOT.glob(each))


def write_commit(root: Path) -> list[str]:
    """Write down the commit below ``root`` if it is known; the files written."""
    from dlperf_hpc.source import commit

    known, file = commit(), root / PLACE / "commit"
    if known is None:
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{known}\n", encoding="utf-8")
    return [str(file)]


class Build(build_py):
    """The package's modules, then the folders, then the commit."""

    brought: tuple[str, ...] = ()

    def run(self) -> None:
        """Called by setuptools; an editable installation gets nothing more."""
        super().run()
        if self.editable_mode:
            return
        target, brought = Path(self.build_lib), []
        for file in bundled():
            copy = target / PLACE / file
            self.mkpath(str(copy.parent))
            self.copy_file(str(ROOT / file), str(copy))
            brought.append(str(copy))
        self.brought = (*brought, *write_commit(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Called by setuptools for its list of what is installed."""
        return [*super().get_outputs(include_bytecode), *self.brought]


class Source(sdist):
    """The files of MANIFEST.in, and the commit, which a wheel that is built of them then has."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Called by setuptools."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


if __name__ == "__main__":
    setup(cmdclass={"build_py": Build, "sdist": Source})
