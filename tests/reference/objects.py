"""Plain look-ups in raw API objects, and Kubernetes quantities."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

from tests.reference.model import Object

_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))((?:[eE][+-]?[0-9]+)|[numkMGTPE]|[KMGTPE]i)?")
_TRUE_WORDS = frozenset({"1", "t", "T", "TRUE", "true", "True"})


def notes_of(obj: Object) -> dict[str, str]:
    return obj.get("metadata", {}).get("annotations") or {}


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Object) -> str:
    return str(obj.get("metadata", {}).get("namespace", ""))


def parse_bool(text: str) -> bool:
    """Go's ParseBool; what it does not know is false (2.1, numa-bind)."""
    return text in _TRUE_WORDS


def quantity(value: object) -> Fraction:
    """A Kubernetes quantity, exactly.

    Raises:
        ValueError: the text is no quantity.
    """
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"not a quantity: {text!r}")
    suffix = match[2] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Fraction(match[1]) * Fraction(10) ** int(suffix[1:])
    return Fraction(match[1]) * _SUFFIXES[suffix]


def exact_int(value: object) -> int | None:
    """The integer that the quantity is, or None if it is none."""
    try:
        number = quantity(value)
    except ValueError:
        return None
    return int(number) if number.denominator == 1 else None


def rounded_up(value: object) -> int:
    """The quantity rounded up to an integer, as Kubernetes' `Value()`."""
    return ceil(quantity(value))


def resource(container: Object, name: str) -> object | None:
    """Limits first, then requests (4.1)."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        values = resources.get(part) or {}
        if name in values:
            return values[name]  # type: ignore[no-any-return]
    return None


def words(text: str) -> list[str]:
    """Comma list: trimmed, without blank items (2.1)."""
    return [item.strip() for item in text.split(",") if item.strip()]
