"""Kubernetes quantities as exact whole numbers.

Source: Kubernetes API conventions, "Quantities" (sign, decimal number, then a binary or decimal suffix or an
exponent). Floats never enter: `2^54 + 1` stays exact (reports B13, B14).
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

import msgspec

from hami.core.objects import Quantity

_QUANTITY: Final = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([A-Za-z]*|[eE][+-]?[0-9]+)", re.ASCII)
_MAX_TEXT_CHARS: Final = 64
_MAX_EXPONENT: Final = 60
_BINARY: Final = {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_SIZES: Final = frozenset(("Mi", "Gi", "Ti", "Pi", "Ei", "G", "T", "P", "E"))


class Whole(msgspec.Struct, frozen=True):
    """A whole number and the suffix it was written with ("" when it had none or an exponent)."""

    value: int
    suffix: str

    @property
    def binary_suffix(self) -> bool:
        return self.suffix in _BINARY


def read_whole(quantity: Quantity) -> Whole:
    """The whole number that a quantity stands for, with its suffix.

    `5k` is 5000, `3e3` is 3000, `3000m` is 3, `16Gi` is 17179869184. Raises ValueError with a sentence for a text that
    is no quantity and for a number that is not whole.
    """
    text = str(quantity)
    if text.isdecimal() and text.isascii() and len(text) <= _MAX_TEXT_CHARS:
        return Whole(int(text), "")
    number, suffix = _exact(text)
    if number.denominator != 1:
        raise ValueError(f"{text} is not a whole number")
    return Whole(int(number), suffix)


def parse_whole(quantity: Quantity) -> int:
    """The whole number that a quantity stands for; see `read_whole`."""
    return read_whole(quantity).value


def floor_whole(quantity: Quantity) -> int:
    """The whole number that a quantity stands for, rounded down. Raises ValueError for a text that is no quantity."""
    return math.floor(_exact(str(quantity))[0])


def size_in_bytes(quantity: Quantity) -> int | None:
    """Bytes of a quantity that is written as a size, `10Gi` or `10G`; None for what reads as a number: `10240`, `10k`.

    What counts MiB and has a suffix from `Mi` or `G` on would mean more than any cluster has.
    """
    try:
        number, suffix = _exact(str(quantity))
    except ValueError:
        return None
    return math.floor(number) if suffix in _SIZES else None


def _exact(text: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT_CHARS else None
    if match is None:
        raise ValueError(f"'{text[:_MAX_TEXT_CHARS]}' is not a quantity")
    sign, digits, suffix = match.groups()
    factor, shown = _factor(text, suffix)
    number = Fraction(digits if not digits.endswith(".") else digits[:-1]) * factor
    return (-number if sign == "-" else number), shown


def _factor(text: str, suffix: str) -> tuple[Fraction, str]:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], suffix
    if suffix in _BINARY:
        return Fraction(_BINARY[suffix]), suffix
    exponent = suffix[1:]
    if suffix[0] not in "eE" or not exponent.lstrip("+-").isdigit():
        raise ValueError(f"'{text}' is not a quantity")
    power = int(exponent)
    if abs(power) > _MAX_EXPONENT:
        raise ValueError(f"{text} is out of range")
    return Fraction(10) ** power, ""
