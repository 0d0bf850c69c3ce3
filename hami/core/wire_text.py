"""Small readers and writers that the annotation forms share."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from hami.core.errors import DecodeError
from hami.core.lenient import lenient
from hami.core.model import INT32_MAX

_T = TypeVar("_T")
_DIGITS: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_ID: Final = re.compile(r"[^\s,:;]+")
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_GO_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def parse_bool(text: str) -> bool | None:
    """A boolean as upstream's language reads it (`1,t,T,true,TRUE,True` and their opposites); None for other texts."""
    return _BOOLS.get(text)


def whole_number(text: str, field: str, subject: str) -> int:
    """A number from 0 to int32. Raises DecodeError with the field and its text."""
    number = int(text) if _DIGITS.fullmatch(text) is not None else -1
    if not 0 <= number <= INT32_MAX:
        raise DecodeError(subject, f"{field} '{text}' is not a whole number between 0 and {INT32_MAX}")
    return number


def checked_id(text: str, field: str, subject: str) -> str:
    """An id that cannot break an allocation list. Raises DecodeError."""
    if _ID.fullmatch(text) is None:
        raise DecodeError(subject, f"{field} '{text}' is empty or has a blank, comma, colon or semicolon in it")
    return text


def decoded_json(decoder: msgspec.json.Decoder[_T], text: str, what: str, subject: str) -> _T:
    """The list in an annotation, as Go reads it: `null`, which its encoder writes for a list that was never filled, is
    an empty one, and in a field it means what a missing field means.

    Raises DecodeError, also for nesting that is too deep to read.
    """
    try:
        return lenient(decoder, b"[]" if text.strip() == "null" else text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise DecodeError(subject, f"not a {what}: {error}") from error


def go_json(value: object) -> str:
    """Compact JSON with the three escapes that upstream's encoder adds, so that texts compare byte by byte."""
    return msgspec.json.encode(value).decode().translate(_GO_ESCAPES)
