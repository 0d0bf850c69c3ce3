"""The console that commands for people print to, and the form of their JSON.

Most of what they show was written by others (names, annotations, messages): it must not steer the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
import rich.console
from rich.segment import Segment


class Console(rich.console.Console):
    """rich's console, except that text is text (no mark-up, no control characters), that what the terminal has no
    letters for is escaped, and that a reader who has gone (`| head`) is the command line's matter, which exits 141."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **how)
        reconfigure = getattr(self.file, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does, with control characters written out."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(shown(segment.text, keep="\n"), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """Called while BrokenPipeError is handled. Raises it again; rich would end the process with status 1."""
        self.quiet = True
        raise BrokenPipeError


def shown(text: str, *, keep: str = "") -> str:
    """The text with everything written out (`\\x1b`) that a terminal would not print as a letter."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def json_text(value: Any) -> str:
    """One indented document, which any standard output can carry and no terminal obeys."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if text.isascii():
        return text
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return "".join(
        letter
        if letter == "\n" or (letter.isprintable() and not (plain and letter > "~"))
        else json.dumps(letter)[1:-1]
        for letter in text
    )
