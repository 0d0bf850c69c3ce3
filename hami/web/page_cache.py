"""What nodes have on the page of `/metrics`, kept per node for as long as the node stays as it is.

A page has all samples of a family together, so a node's text is one piece for each family (`web.deflated`): compressed,
73 MiB of page for 5,000 nodes of 8 cards and 50,000 pods take 11 MiB, and a scrape renders only what changed since the
last. A node changed when its view has another revision (`placement.world`): nothing else that a row reads can differ.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hami.placement.world import World
from hami.web.deflated import Compressor, Piece, joined_sums
from hami.web.exposition import Lines, head
from hami.web.node_families import NodeFacts, NodeFamily, facts_of, known_names
from hami.web.streamed import Turns

_RUN_NODES: Final = 512
"""Nodes whose pieces are joined at once: a few tenths of a millisecond."""
_NAMES_IN_A_SLICE: Final = 500
_UNKNOWN: Final = -1
"""Revision of a node that is known from pods only."""


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """One node at one revision. `blocks`: all its pieces in the order of the families; `facts`: three rows of uint32
    with where each piece ends in it, its length as text and its CRC."""

    revision: int
    blocks: bytes
    facts: bytes


_Sums = list[tuple[int, int] | None]
"""Per family, CRC and length of the joined pieces of some nodes; None until somebody has asked."""


class _Run:
    """Neighbouring nodes of one page."""

    def __init__(self, entries: list[_Entry], sums: _Sums) -> None:
        self._entries = entries
        self._sums = sums

    def piece(self, family: int) -> Piece:
        """The family's samples of these nodes."""
        table = self._table()
        ends = table[:, 0, family].tolist()
        starts = table[:, 0, family - 1].tolist() if family else [0] * len(ends)
        data = b"".join([e.blocks[start:end] for e, start, end in zip(self._entries, starts, ends, strict=True)])
        sums = self._sums[family]
        if sums is None:
            sums = self._sums[family] = joined_sums(table[:, 2, family], table[:, 1, family].astype(np.int64))
        return Piece(data, *sums)

    def _table(self) -> NDArray[np.uint32]:
        facts = b"".join([entry.facts for entry in self._entries])
        return np.frombuffer(facts, np.uint32).reshape(len(self._entries), 3, len(self._sums))


class PageCache:
    """The nodes' part of the page."""

    def __init__(self, world: World, families: tuple[NodeFamily, ...]) -> None:
        self._world = world
        self._families = families
        self._lines = [Lines(family.name, family.labels) for family in families]
        self._entries: dict[str, _Entry] = {}
        self._sums: dict[bytes, _Sums] = {}
        """By the revisions of a run's nodes. It holds no entries: while nodes are rendered anew, what they had is
        free."""
        self._seen: tuple[list[str], list[str]] = ([], [])
        self._order: list[str] = []
        self._renewal = asyncio.Lock()
        self._compressor = Compressor()
        self.rendered = 0
        """Nodes that were rendered so far."""

    async def clear(self) -> None:
        """Forgets everything: nobody asks for it now."""
        async with self._renewal:
            self._entries, self._sums = {}, {}

    async def pieces(self, turns: Turns) -> AsyncIterator[Piece]:
        """Every family of every node; each node is as it was at some moment since the call."""
        async with self._renewal:
            await self._renew(turns)
            runs = self._runs()
        for number, family in enumerate(self._families):
            yield self._compressor.piece(head(family.name, family.text).encode())
            for run in runs:
                await turns.give_way()
                yield run.piece(number)

    async def _renew(self, turns: Turns) -> None:
        """What was rendered is kept at once: a page that nobody waits for any more was not made in vain."""
        names = self._names()
        await turns.give_way()
        for number, name in enumerate(names):
            view, known = self._world.view(name), self._entries.get(name)
            if view is None or known is None or known.revision != view.revision:
                # Nodes that only pods speak of have no revision to go by.
                self._entries[name] = self._render(facts_of(self._world, name))
                await turns.give_way()
            elif not number % _NAMES_IN_A_SLICE:
                await turns.give_way()
        self._entries = {name: self._entries[name] for name in names}
        await turns.give_way()

    def _names(self) -> list[str]:
        """Sorted anew only when nodes came or went: that is the longest thing here that cannot be sliced."""
        seen = (self._world.inventory.names(), self._world.ledger.nodes())
        if seen != self._seen:
            self._seen, self._order = seen, known_names(self._world)
        return self._order

    def _runs(self) -> list[_Run]:
        """Runs of the same nodes at the same revisions as last time have their sums already."""
        entries, known, runs = list(self._entries.values()), self._sums, []
        self._sums = {}
        for at in range(0, len(entries), _RUN_NODES):
            part = entries[at : at + _RUN_NODES]
            revisions = [entry.revision for entry in part]
            key = np.array(revisions, np.int64).tobytes()
            nothing: _Sums = [None] * len(self._families)
            sums = nothing if _UNKNOWN in revisions else known.get(key, nothing)
            self._sums[key] = sums
            runs.append(_Run(part, sums))
        return runs

    def _render(self, node: NodeFacts) -> _Entry:
        self.rendered += 1
        texts = [lines.of(family.rows(node)) for lines, family in zip(self._lines, self._families, strict=True)]
        pieces = [self._compressor.piece(text.encode()) for text in texts]
        ends = list(itertools.accumulate(len(piece.data) for piece in pieces))
        facts = [ends, [piece.length for piece in pieces], [piece.crc for piece in pieces]]
        revision = node.view.revision if node.view is not None else _UNKNOWN
        return _Entry(revision, b"".join([piece.data for piece in pieces]), np.array(facts, np.uint32).tobytes())
