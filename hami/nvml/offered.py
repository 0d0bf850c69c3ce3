"""What pynvml answers, made plain: text as text, and a default for what a card does not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import pynvml

NOT_OFFERED: Final = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
    pynvml.NVMLError_NoPermission,
)

R = TypeVar("R")


def offered(read: Callable[[], R], otherwise: R) -> R:
    """What the card tells, or `otherwise` where it has no such thing."""
    try:
        return read()
    except NOT_OFFERED:
        return otherwise


def text(value: str | bytes) -> str:
    """What pynvml gave as bytes or text; what is no UTF-8 in it is replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def words(read: Callable[[], str | bytes]) -> str:
    """Text that the driver tells; what is no UTF-8 in it is replaced, where pynvml fails on the whole."""
    try:
        return text(read())
    except UnicodeDecodeError as error:
        return text(error.object)
