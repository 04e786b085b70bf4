"""Numbers of many lines at once, where the lines differ in nothing but digits.

Lines that are alike once every digit is made a 0 have the same numbers at the same places: what one
of them is found to hold by a pattern, all hold. Their digits are then read column by column.

A decimal number of at most 15 digits, or below 2**53, is read as float() reads it, to the last bit:
its digits are a whole number that a float holds exactly, as are powers of ten up to 10**22, and one
division (or product) of the two is rounded once (W. D. Clinger, "How to read floating point numbers
accurately", 1990). Longer ones are left to float().
"""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dlperf_hpc.logs.scan.rows import CLOCKS, Clock, Columns, Form

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_EXACT_DIGITS = 15
_MOST_DIGITS = 19  # of a number below 2**64
_MOST_POWER = 22
_POWERS = np.array([10.0**power for power in range(_MOST_POWER + 1)])
_WORD = 8  # bytes
_DIGITS_OF = [np.uint64(2**64 - 2 ** (64 - 8 * count)) for count in range(_WORD + 1)]
_ADDED_UP = [
    (np.uint64(mask), np.uint64(factor), np.uint64(shift))
    for mask, factor, shift in (
        (0x0F0F0F0F0F0F0F0F, 10 * 2**8 + 1, 8),
        (0x00FF00FF00FF00FF, 100 * 2**16 + 1, 16),
        (0x0000FFFF0000FFFF, 10000 * 2**32 + 1, 32),
    )
]
"""Digits that are the bytes of a word: what is left of each field, and what makes two fields one
(D. Lemire, "Quickly parsing eight digits", 2018)."""

_NUMBER = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([-+]?)([0-9]+))?")


class _Number(NamedTuple):
    """Where the digits of a number lie: those of its mantissa, and of its exponent."""

    negative: bool
    digits: tuple[int, ...]
    decimals: int
    sign: int
    exponent: range


@functools.lru_cache(maxsize=4096)
def _number(masked: bytes) -> _Number | None:
    found = _NUMBER.fullmatch(masked)
    if found is None:
        return None
    digits = [*range(*found.span(2)), *(range(*found.span(3)) if found[3] else ())]
    exponent = range(*found.span(5)) if found[5] else range(0)
    return _Number(
        bool(found[1]),
        tuple(digits),
        len(found[3] or b""),
        -1 if found[4] == b"-" else 1,
        exponent,
    )


@functools.lru_cache(maxsize=4096)
def _spans(places: Sequence[int]) -> list[tuple[int, int]]:
    """Where digits at rising places end that follow each other, and how many: at most 8."""
    found: list[tuple[int, int]] = []
    for place in places:
        end, count = found[-1] if found else (-1, 0)
        if place == end and count < _WORD:
            found[-1] = (place + 1, count + 1)
        else:
            found.append((place + 1, 1))
    return found


class Places(Columns):
    """The groups of many lines, of which it is known where they lie.

    ``begins`` are the places in ``block`` where the lines begin; ``which`` has each line's form by
    its number in ``forms``. These have all the same groups.
    """

    def __init__(self, block: bytes, begins: Whole, which: Whole, forms: Sequence[Form]) -> None:
        self._block, self._begins, self._which = block, begins, which
        self._data = np.frombuffer(block, np.uint8)
        present = np.flatnonzero(np.bincount(which)).tolist()
        self._forms = {number: forms[number] for number in present}
        self._groups = next(iter(self._forms.values())).groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __getitem__(self, name: str) -> list[str]:
        texts = np.empty(len(self._begins), object)
        for masked, where, begins in self._parts(name):
            texts[where] = self._texts(masked, begins)
        found: list[str] = texts.tolist()
        return found

    def floats(self, name: str, least: float, most: float) -> array[float] | None:
        values = np.empty(len(self._begins))
        for masked, where, begins in self._parts(name):
            values[where] = self._read(masked, begins)
        return _column(values) if least <= values.min() and values.max() <= most else None

    def whole(self, name: str, first: int = 0) -> array[int]:
        values = np.empty(len(self._begins), np.int64)
        for masked, where, begins in self._parts(name):
            if masked.isdigit() and len(masked) <= _EXACT_DIGITS:
                values[where] = self._digits(begins, range(len(masked)))
            else:
                values[where] = list(map(int, self._texts(masked, begins)))
        return _column(values + first)

    def stamps(self, name: str) -> array[float] | None:
        clock = CLOCKS[name]
        if not clock.length:
            return self.floats(name, -math.inf, math.inf)
        values = np.empty(len(self._begins))
        for masked, where, begins in self._parts(name):
            minutes = self._minutes(masked, begins, clock)
            second = self._digits(begins, range(clock.length + 1, clock.length + 3))
            if minutes is None or second.max() > clock.last:
                return None
            seconds = minutes + second
            fraction = range(clock.length + 4, len(masked))
            if len(fraction):
                seconds += self._digits(begins, fraction) / _POWERS[len(fraction)]
            values[where] = seconds
        return _column(values)

    def distinct(self, name: str) -> set[str]:
        found: set[str] = set()
        for masked, _, begins in self._parts(name):
            if masked.isdigit() and len(masked) <= _EXACT_DIGITS:
                numbers = self._digits(begins, range(len(masked)))
                numbers = numbers[:1] if (numbers == numbers[0]).all() else np.unique(numbers)
                found.update(f"{int(number):0{len(masked)}d}" for number in numbers)
            else:
                found.update(self._texts(masked, begins))
        return found

    def are_fixed(self) -> bool:
        """Whether the lines have the texts that do not differ in lines of their forms."""
        for number, form in self._forms.items():
            for begin, text in form.fixed:
                begins = self._begins[self._which == number] + begin
                digits = self._data[begins[:, None] + np.arange(len(text))]
                if not (digits == np.frombuffer(text, np.uint8)).all():
                    return False
        return True

    def _parts(self, name: str) -> Iterator[tuple[bytes, Any, Whole]]:
        """The masked texts of a group, the lines that have it, and where it begins in these."""
        by_text: dict[bytes, list[int]] = {}
        offsets = np.zeros(max(self._forms) + 1, np.int64)
        for number, form in self._forms.items():
            offsets[number], masked = form.groups[name]
            by_text.setdefault(masked, []).append(number)
        begins = self._begins + offsets[self._which]
        if len(by_text) == 1:
            yield next(iter(by_text)), slice(None), begins
            return
        kinds = np.zeros(len(offsets), np.intp)
        for kind, numbers in enumerate(by_text.values()):
            kinds[numbers] = kind
        kinds = kinds[self._which]
        for kind, masked in enumerate(by_text):
            where = np.flatnonzero(kinds == kind)
            yield masked, where, begins[where]

    def _texts(self, masked: bytes, begins: Whole) -> list[str]:
        block, length = self._block, len(masked)
        return [block[at : at + length].decode() for at in begins.tolist()]

    def _digits(self, begins: Whole, places: Sequence[int]) -> Floats:
        """Whole numbers of at most 15 digits, which lie at these rising places."""
        found = np.zeros(len(begins), np.uint64)
        for number, (end, count) in enumerate(_spans(places)):
            digits = self._few_digits(begins + end, count)
            found = found * np.uint64(10**count) + digits if number else digits
        return found.astype(np.float64)

    def _few_digits(self, ends: Whole, count: int) -> npt.NDArray[np.uint64]:
        """Whole numbers of ``count`` digits, at most 8, that end at these places: as the bytes of
        one word, of which neighbours are added up three times."""
        if count == 1:
            return (self._data[ends - 1] - np.uint8(ord("0"))).astype(np.uint64)
        if ends[0] < _WORD:
            texts = [self._block[end - count : end] for end in ends.tolist()]
            return np.array(list(map(int, texts)), np.uint64)
        words = self._words[ends - _WORD] & _DIGITS_OF[count]
        for mask, factor, shift in _ADDED_UP:
            words &= mask
            words *= factor
            words >>= shift
        return words

    @functools.cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        """The 8 bytes at each place of the block as a number, the first of them the least."""
        count = max(0, len(self._block) + 1 - _WORD)
        return np.ndarray((count,), "<u8", self._block, 0, (1,))

    def _read(self, masked: bytes, begins: Whole) -> Floats:
        """Decimal numbers."""
        number = _number(masked)
        if number is None or len(number.digits) > _MOST_DIGITS or number.decimals > _MOST_POWER:
            return np.array(list(map(float, self._texts(masked, begins))))
        if len(number.digits) <= _EXACT_DIGITS:
            values, exact = self._digits(begins, number.digits), None
        else:
            upper, lower = number.digits[:-_EXACT_DIGITS], number.digits[-_EXACT_DIGITS:]
            whole = self._digits(begins, upper).astype(np.uint64) * np.uint64(10**_EXACT_DIGITS)
            whole += self._digits(begins, lower).astype(np.uint64)
            values, exact = whole.astype(np.float64), whole <= 1 << 53
        if len(number.exponent):
            power = number.sign * self._digits(begins, number.exponent) - number.decimals
            near = np.abs(power) <= _MOST_POWER
            exact = near if exact is None else exact & near
            factor = _POWERS[np.abs(np.where(near, power, 0)).astype(np.intp)]
            values = np.where(power >= 0, values * factor, values / factor)
        elif number.decimals:
            values = values / _POWERS[number.decimals]
        if number.negative:
            values = -values
        if exact is not None and not exact.all():
            left = np.flatnonzero(~exact)
            values[left] = list(map(float, self._texts(masked, begins[left])))
        return values

    def _minutes(self, masked: bytes, begins: Whole, clock: Clock) -> Floats | None:
        """Seconds at which the lines' minutes begin; None if one is no time. Most lines are of the
        same minute as the line before."""
        words = self._words[begins], self._words[begins + (clock.length - _WORD)]
        same = np.logical_and(*[each[1:] == each[:-1] for each in words])
        changes = np.flatnonzero(np.concatenate(([True], ~same)))
        found = [
            clock.minute(text) for text in self._texts(masked[: clock.length], begins[changes])
        ]
        if None in found:
            return None
        seconds = np.array(found, np.float64)
        return np.repeat(seconds, np.diff(changes, append=len(begins)))


def _column(values: npt.NDArray[Any]) -> array[Any]:
    """A column of steps with these numbers."""
    return array("d" if values.dtype == np.float64 else "q", values.tobytes())
