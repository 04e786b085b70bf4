"""What a newcomer types wrong gets an answer that helps, and ``docs/mistakes.md`` shows it."""

from __future__ import annotations

import re

import pytest
from mistakes import PAGE, Answer, answers, page
from mistakes_made import BY_HAND, MISTAKES

COUNT = 40
_MOST_LINES, _LONGEST = 8, 500
# What to do: a word for it, a name in its place, all that there is, or an option or a command.
_TO_DO = re.compile(
    r"did you mean|there are|\b(?:write|give|leave|keep|save|use|take|type|add|unpack|begin with"
    r"|stands?|called|key of|set)\b|\bis missing\b|one argument too many|the ids are|would match"
    r"|`dlperf "
)
_BY_THE_SYSTEM = "no such file or directory"  # says what and where; there is one thing to do


@pytest.fixture(scope="module")
def found() -> dict[str, list[Answer]]:
    return answers()


def test_the_page_shows_what_is_answered_now(found: dict[str, list[Answer]]) -> None:
    """Where it does not: `make mistakes`."""
    assert PAGE.read_text(encoding="utf-8") == page(found)


def test_every_mistake_gets_a_short_answer_that_says_what_to_do(
    found: dict[str, list[Answer]],
) -> None:
    given = [answer for chapter in found.values() for answer in chapter]
    assert len(given) == sum(map(len, MISTAKES.values())) >= COUNT
    for answer in given:
        mistake, text = answer.mistake, "\n".join(answer.lines)
        assert answer.code == mistake.code, (mistake.what, text)
        assert "Traceback" not in text and "/tmp/" not in text, text
        if answer.code != 0:
            assert answer.err or mistake.shown != (None, None), mistake.what
            assert _TO_DO.search(text) or _BY_THE_SYSTEM in text, text
        if mistake.shown == (None, None):
            assert len(answer.lines) <= _MOST_LINES, text
            assert max(map(len, answer.lines)) <= _LONGEST, text
        if answer.code == 2 and answer.err and mistake.typed != "dlperf":
            assert answer.err.startswith("error: "), text


def test_an_answer_names_the_file_the_option_or_the_place(found: dict[str, list[Answer]]) -> None:
    """The first words of an error are where it is: a word that was typed, or what was read."""
    for answer in (each for chapter in found.values() for each in chapter):
        if not answer.err.startswith("error: ") or "sbatch" in answer.err:
            continue
        head = " ".join(answer.lines[:2])
        words = set(answer.mistake.typed.split()[1:]) | {"command line", "site profile"}
        assert any(word.removeprefix("./") in head for word in words), head


def test_who_knows_other_tools_gets_the_words_of_this_one(found: dict[str, list[Answer]]) -> None:
    """The words of a good answer were written down before there were answers; and no hint offers
    what is only spelt alike."""
    assert len(found[BY_HAND]) >= 120
    for answer in found[BY_HAND]:
        text = " ".join(map(str.strip, answer.lines))
        lacks = [word for word in answer.mistake.must if word not in text]
        assert not lacks and "did you mean" not in text, (answer.mistake, text)
