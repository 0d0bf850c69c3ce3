"""Cuts a byte stream into lines of any length (an API object may be larger than any read buffer)."""

from __future__ import annotations


class LineSplitter:
    """Feed chunks, get the lines that they complete. Empty lines are dropped; an unfinished tail is kept."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Complete lines, without newlines. A line is copied once, however many chunks it came in."""
        head, newline, rest = chunk.partition(b"\n")
        self._parts.append(head)
        if not newline:
            return []
        lines = [b"".join(self._parts), *rest.split(b"\n")]
        self._parts = [lines.pop()]
        return [line for line in lines if line]
