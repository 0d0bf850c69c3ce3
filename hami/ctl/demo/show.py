"""Prints the tour: progress, the table node → card → pod, and pods' stories. Colour on a terminal, plain otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from hami.ctl.console import Console
from hami.ctl.demo.report import NodeReport, PodReport
from hami.ctl.demo.tour import Ending

PLAIN_WIDTH: Final = 110
"""Columns where no terminal says how many it has: a file or a pipe."""
TYPE_WIDTH: Final = 100
"""Columns from which the table has room for the cards' types."""
TOTALS_WIDTH: Final = 76
"""Columns from which it has room for what a card has beside what is taken."""


class Screen:
    """Where the demo speaks. Quiet on stdout while `--json` is asked for: then progress goes to stderr."""

    def __init__(self, *, progress_to_stderr: bool) -> None:
        self.console = Console(stderr=progress_to_stderr)
        if not self.console.is_terminal:
            self.console.width = PLAIN_WIDTH

    def step(self, text: str, seconds: float | None = None) -> None:
        """One line of progress."""
        took = f" ({seconds:.1f} s)" if seconds is not None else ""
        self.console.print(Text("· ", style="dim") + Text(text + took))

    def pod(self, name: str, shows: str, ending: Ending, node: str, ok: bool) -> None:
        """One pod of the tour and how it ended."""
        mark, style = ("✓", "green") if ok else ("✗", "bold red")
        where = f" on {node}" if node else ""
        self.console.print(Text.assemble((mark, style), f" {name:<17}{ending.value:<8}{where:<13} {shows}"))

    def problem(self, text: str) -> None:
        """Something is not as the tour says."""
        self.console.print(Text(f"  {text}", style="bold red"))

    def cards(self, nodes: Sequence[NodeReport]) -> None:
        """The table node → card → pod → MiB and cores."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        with_type, with_totals = self.console.width >= TYPE_WIDTH, self.console.width >= TOTALS_WIDTH
        for column in ("NODE", "CARD", *(("TYPE",) if with_type else ()), "POD"):
            table.add_column(column, no_wrap=True)
        for column in ("MiB", "CORES %"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in _rows(nodes, with_totals=with_totals):
            table.add_row(*(row if with_type else row[:2] + row[3:]))
        self.console.print(table)

    def story(self, pod: PodReport) -> None:
        """A pod as `kubectl describe` would tell it, shortened to what matters here."""
        lines = [("Name:", pod.name), ("Node:", pod.node or "<none>"), ("Status:", pod.phase)]
        lines += [("Card:", f"{card}  {memory} MiB  {cores} % cores") for card, memory, cores in pod.cards]
        for label, value in lines:
            self.console.print(Text(f"{label:<14}", style="bold") + Text(value))
        self.console.print(Text("Events:", style="bold"))
        for event in pod.events:
            style = "yellow" if event.type == "Warning" else ""
            self.console.print(
                Text(f"  {event.type:<8} {event.reason:<18} {event.source:<17} {event.message}", style=style)
            )
        self.console.print()


def _rows(nodes: Sequence[NodeReport], *, with_totals: bool) -> Iterator[tuple[str | Text, ...]]:
    """Node, card, type, pod, MiB, cores; a name is said once."""
    for node in nodes:
        name = node.name
        used = [card for card in node.cards if card.shares]
        for card in used:
            index, kind = str(card.index), card.type
            for share in card.shares:
                yield name, index, kind, share.pod, f"{share.memory_mib:,}", str(share.core_percent)
                name, index, kind = "", "", ""
            memory = f"{sum(share.memory_mib for share in card.shares):,}"
            cores = str(sum(share.core_percent for share in card.shares))
            if with_totals:
                memory, cores = f"{memory} of {card.memory_mib:,}", f"{cores} of {card.core_percent}"
            yield "", "", "", *(Text(word, style="dim") for word in ("together", memory, cores))
        if len(node.cards) > len(used):
            yield name, "", "", Text(f"{len(node.cards) - len(used)} idle", style="dim"), "", ""
