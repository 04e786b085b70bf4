"""``dlperf completion SHELL``: lines by which a shell completes verbs, options, sweeps and runs.

The shell calls ``dlperf`` at each TAB, with ``_ARGCOMPLETE`` set; argcomplete reads the words of
the line by the verb's own parser. Nothing here is imported by another call.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import SiteError

SUMMARY = "print what a shell (bash, zsh, fish) reads to complete verbs, options and sweeps"
SHELLS = ("bash", "zsh", "fish")
_EPILOG = """\
examples:
  eval "$(dlperf completion bash)"          in ~/.bashrc; zsh alike, in ~/.zshrc
  dlperf completion fish | source           in ~/.config/fish/config.fish
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser("completion", f"{SUMMARY[0].upper()}{SUMMARY[1:]}.", _EPILOG)
    made.add_argument("shell", choices=SHELLS)
    return made


def _completion(arguments: argparse.Namespace) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ModuleNotFoundError:
        raise SiteError(
            "completion needs argcomplete: install dlperf_hpc[completion], or argcomplete itself"
        ) from None
    print(shellcode(["dlperf"], shell=arguments.shell))
    return 0


def verb_of_line(verbs: Iterable[str]) -> list[str]:
    """The verb of the line that is completed, as arguments; does not return while it is written."""
    words = f"{os.environ['COMP_LINE'][: int(os.environ['COMP_POINT'])]}|".split()
    if len(words) > 2:
        options.hooks.append(complete)
        os.environ["_ARGCOMPLETE"] = "2"  # the line's words begin with the verb
        return words[1:2]
    made = argparse.ArgumentParser()
    made.add_argument("verb", choices=[*verbs, "help", "version"])
    complete(made)
    return []


def complete(parser: argparse.ArgumentParser) -> None:
    """Write how the line may go on, and leave: called before a verb reads its arguments."""
    import argcomplete

    for action in parser._actions:
        if action.dest in _COMPLETERS:
            vars(action)["completer"] = _COMPLETERS[action.dest]
    argcomplete.autocomplete(parser)


def _sweeps(**_: Any) -> list[str]:
    """Those of the current directory; the shell completes other paths by itself."""
    return [str(path.parent) for path in sorted(Path("logs").glob("*/manifest.json"))]


def _sweep_files(**_: Any) -> list[str]:
    from dlperf_hpc.bundled import folder

    ready = [path.stem for path in folder("sweeps").glob("*.toml")]
    return [*map(str, sorted(Path().glob("*.toml"))), *sorted(ready)]


def _runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from dlperf_hpc.records.manifest import read_manifest

    return [run.id for run in read_manifest(parsed_args.directory).runs]


_COMPLETERS = {
    **dict.fromkeys(("directory", "paths", "a", "b"), _sweeps),
    **{"spec": _sweep_files, "run": _runs, "why": _runs},
}

main = messages.entry(_completion, _parser)
