"""Reads the pages that people are given: fenced blocks, commands in them, links, names of chart values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_PROGRAMS: Final = ("hami", "kubectl", "helm", "make", "docker", "buildah", "python")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, language (may be empty) and text."""

    page: Path
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a block, continuation lines joined, as words. `words[0]` is the program."""

    page: Path
    words: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Long flags without their values."""
        return tuple(word.partition("=")[0] for word in self.words if word.startswith("--") and word != "--")

    def values_of(self, flag: str) -> list[str]:
        """What follows each use of a flag."""
        after = zip(self.words, self.words[1:], strict=False)
        return [value for word, value in after if word == flag]


def blocks() -> Iterator[Block]:
    """All fenced blocks of all pages."""
    for page in PAGES:
        for indent, language, text in _FENCE.findall(page.read_text()):
            yield Block(page, language, re.sub(f"^{indent}", "", text, flags=re.M))


def commands() -> Iterator[Command]:
    """Every line of a bash or plain block that begins with a program that people run."""
    for block in blocks():
        if block.language not in ("", "bash", "sh"):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ").split(" | ")[0].split(" > ")[0]
            if words.split(" ")[0] in _PROGRAMS:
                yield Command(block.page, tuple(shlex.split(words, comments=True)))


def links() -> Iterator[tuple[Path, str]]:
    """(page, target) of links that lead to files of this repository."""
    for page in PAGES:
        prose = _FENCE.sub("", page.read_text())
        for target in _LINK.findall(prose):
            if "://" not in target and not target.startswith(("#", "mailto:")):
                yield page, target.partition("#")[0]


def chart_values() -> Iterator[tuple[Path, str]]:
    """(page, key) of chart values named in prose, as `scheduler.replicas=2`."""
    for page in PAGES:
        prose = _FENCE.sub("", page.read_text())
        for text in re.findall(
            r"`((?:scheduler|devicePlugin|global|admissionPolicy)\.[A-Za-z][\w.]*)(?:=[^`]*)?`", prose
        ):
            yield page, text
