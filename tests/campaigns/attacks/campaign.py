"""The campaign of attacks: ``python tests/campaigns/attacks/campaign.py`` (or ``make attacks``).

Plants what another user of a shared file system could plant, types the commands of somebody who
knows nothing of it, and prints what they did: 0 written, 0 executed, 0 leaked.
"""

from __future__ import annotations

import argparse
import platform
import sys
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attacks.colleagues
import attacks.queued  # noqa: F401 - its attacks are among ATTACKS then
from attacks.attacks import ATTACKS, Attack
from attacks.scene import Effect, scene, two_users
from dlperf_hpc.train.joblog import provenance

WORKERS = 2
COLUMNS = ("attack", "tried", "told", "written", "executed", "leaked", "blocked", "raw", "crashed")
_COUNTED = COLUMNS[3:]

PAGE = """\
# What another user's files can do

`make attacks` plants what somebody could plant who shares a file system with you, types commands
as a user who knows nothing of it, and writes this page. [SECURITY.md](../SECURITY.md) says what is
trusted and what is checked.

{head}

{table}

**How.** Attacker and victim are two users{users}. The victim's home has a private key and a
`.bashrc`; whatever is run by an attack leaves a file. After each command all files are compared.
Jobs that wait are those of a one-machine Slurm, whose user is then the victim.

- *tried*: commands typed.
- *told*: of these, those that said what they had to say: what is wrong, or whose it is.
- *written*: files changed, made or removed that the command was not asked to write, and files and
  directories that it made for everybody to write.
- *executed*: commands, scripts and modules of the attacker's that ran.
- *leaked*: places that the victim's secret got to: output, reports, archives, logs; not what the
  victim's own program printed.
- *blocked*: commands that an attack kept from doing what they were typed for.
- *raw*: commands that printed control characters, or characters that turn the direction of writing.
- *crashed*: commands that ended with a traceback, by a signal, or not at all.

{notes}
"""


@dataclass
class Trial:
    """One attack and what came of it."""

    attack: str
    effect: Effect

    @property
    def good(self) -> bool:
        """Nothing happened that must not, and everything was told."""
        return self.effect.tried == self.effect.told and not any(self.found())

    def found(self) -> list[str]:
        """Every effect that an attack must not have, in words."""
        return [
            f"{each.name}: {line}"
            for each in fields(Effect)
            if isinstance(lines := getattr(self.effect, each.name), list)
            for line in lines
        ]


def tried(attack: Attack) -> Trial:
    """Plant one attack in a scene of its own and type its commands."""
    with scene() as place:
        return Trial(attack.name, place.strike(attack.plant(place)))


def possible() -> list[Attack]:
    """The attacks that can be tried here."""
    return [attack for attack in ATTACKS if two_users() or not attack.two_users]


def run(attacks: Sequence[Attack]) -> list[Trial]:
    """Try all attacks; a trial for each, in their order."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(tried, attacks))


def _cells(trial: Trial) -> list[str]:
    counts = [len(getattr(trial.effect, name)) for name in _COUNTED]
    return [trial.attack, str(trial.effect.tried), str(trial.effect.told), *map(str, counts)]


def rows(trials: Sequence[Trial]) -> list[list[str]]:
    """The table's cells: a row for each attack, and one for all."""
    made = [_cells(trial) for trial in trials]
    total = [str(sum(int(row[i]) for row in made)) for i in range(1, len(COLUMNS))]
    return [*made, ["all", *total]]


def table(trials: Sequence[Trial]) -> str:
    """The table for a terminal, and what was found below it."""
    cells = [list(COLUMNS), *rows(trials)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    shapes = [f"<{widths[0]}", *(f">{width}" for width in widths[1:])]
    lines = ["  ".join(map(format, row, shapes)).rstrip() for row in cells]
    return "\n".join([*lines, "", *(line for trial in trials for line in trial.found())])


def page(head: str, trials: Sequence[Trial]) -> str:
    """The table as a page of the docs."""
    cells = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)], *rows(trials)]
    left = [attack.name for attack in ATTACKS if attack.name not in {t.attack for t in trials}]
    notes = [f"- not tried, for want of a second user: {name}." for name in left]
    notes += [f"- {trial.attack}: {line}" for trial in trials for line in trial.found()]
    return (
        PAGE.format(
            head=head,
            table="\n".join("| " + " | ".join(row) + " |" for row in cells),
            users="" if two_users() else " in name only: this was not run by root",
            notes="\n".join(textwrap.fill(note, 100, subsequent_indent="  ") for note in notes),
        ).rstrip("\n")
        + "\n"
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, prog="campaign.py")
    made.add_argument("--only", default="", help="attacks whose name holds this")
    made.add_argument("--list", action="store_true", help="name the attacks")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write it as a page as well")
    return made


def main() -> int:
    """Try the attacks and print the table; 1 if one of them had an effect."""
    arguments = _parser().parse_args()
    chosen = [attack for attack in possible() if arguments.only.lower() in attack.name.lower()]
    if arguments.list:
        print("\n".join(attack.name for attack in chosen))
        return 0
    trials = run(chosen)
    facts = provenance()
    head = (
        f"dlperf_hpc at {facts['tool_commit']}, Python {facts['python']}, Linux"
        f" {platform.release()}; {time.strftime('%Y-%m-%d')}"
    )
    print(f"{head}\n\n{table(trials)}")
    if arguments.markdown:
        arguments.markdown.write_text(page(head, trials), encoding="utf-8")
    return 0 if all(trial.good for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
