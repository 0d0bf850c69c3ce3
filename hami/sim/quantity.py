"""Kubernetes quantities: exact value and canonical text.

kube-apiserver rewrites every quantity canonically when it decodes an object (`3000` becomes `3k`), which readers of
limits must survive; so does the stand-in. Source: apimachinery pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_PATTERN: Final = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))([KMGTPE]i|[numkMGTPE]?|[eE][+-]?\d+)$")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_BINARY_SUFFIX: Final = {power: suffix for suffix, power in _BINARY.items()}
_DECIMAL_SUFFIX: Final = {power: suffix for suffix, power in _DECIMAL.items()}

REGEX_TEXT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _split(text: str) -> tuple[Fraction, str]:
    found = _PATTERN.match(text)
    if not found:
        raise ValueError(REGEX_TEXT)
    return Fraction(found[1]), found[2]


def parse(value: str | float) -> Fraction:
    """The exact value. Raises ValueError with the real server's words."""
    number, suffix = _split(str(value).strip())
    if suffix in _BINARY:
        return number * Fraction(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def _round_up(value: Fraction) -> int:
    magnitude = -(-abs(value).numerator // abs(value).denominator)
    return magnitude if value >= 0 else -magnitude


def _decimal(nano: int, exponent_form: bool) -> str:
    if nano == 0:
        return "0"
    exponent = -9
    while nano % 1000 == 0 and exponent < 18:
        nano //= 1000
        exponent += 3
    if exponent_form:
        return f"{nano}e{exponent}" if exponent else str(nano)
    return f"{nano}{_DECIMAL_SUFFIX[exponent]}"


def canonical(value: str | float) -> str:
    """The text that the API server answers with. Raises ValueError on what is no quantity."""
    text = str(value).strip()
    _, suffix = _split(text)
    amount = parse(text)
    if suffix in _BINARY and abs(amount) >= 1024:
        number, power = _round_up(amount), 0
        while number % 1024 == 0 and power < 6:
            number //= 1024
            power += 1
        return f"{number}{_BINARY_SUFFIX.get(power, '')}"
    exponent_form = suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei"
    return _decimal(_round_up(amount * 10**9), exponent_form)


def whole(value: str | float) -> int:
    """The value rounded up to an integer, as Quantity.Value()."""
    return _round_up(parse(value))


def milli(value: str | float) -> int:
    """Thousandths rounded up, as Quantity.MilliValue(); the scheduler counts CPU so."""
    return _round_up(parse(value) * 1000)
