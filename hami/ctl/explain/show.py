"""Prints an explanation for people: the answer first, then nodes and cards, then what would help."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from hami.core.explain import RequestReport
from hami.core.model import PodRequest
from hami.core.objects import Pod
from hami.ctl.console import Console
from hami.ctl.explain import words
from hami.ctl.explain.story import Story
from hami.placement.explain import Explanation, NodeAnswer

PLAIN_WIDTH: Final = 160
"""Columns where no terminal says how many it has: a file or a pipe."""
_NEVER: Final = "As it is, it would not fit even on an empty node."
_MOST_GROUPS: Final = 4
_MOST_NAMES: Final = 5


class Screen:
    """Standard output; colour on a terminal, plain otherwise. `everything`: all nodes and the passed checks, too."""

    def __init__(self, *, everything: bool) -> None:
        self._console = Console()
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH
        self._everything = everything

    def explanation(self, found: Explanation, notes: Sequence[str]) -> None:
        """The answer, what the pod asks, nodes with their cards, and changes."""
        self._answer(found)
        for note in notes:
            self._line(f"note: {note}", "yellow")
        if found.request is not None:
            self._asked(found.pod, found.request)
            if found.excess is not None:
                self._line(found.excess.text, "red")
            self._nodes(found, found.request)
        if found.changes:
            self._line("Any one of these would make it fit:", "bold")
            for number, change in enumerate(found.changes, start=1):
                self._line(f"  {number}. {change.text} (then: node {change.node})")
        elif found.nodes and not found.fits:
            self._line("No single change of the pod, of a card or of another pod would make it fit.")
            self._pairs(found)
            self._together(found)
        if found.nodes and not found.fits:
            empty = found.on_empty_node
            self._line(f"It would fit on node {empty} if that were empty." if empty else _NEVER)

    def _pairs(self, found: Explanation) -> None:
        if found.pairs:
            self._line("Two together would:", "bold")
        for number, (left, right) in enumerate(found.pairs, start=1):
            self._line(f"  {number}. {left.text}, and {right.text} (then: node {left.node})")

    def _together(self, found: Explanation) -> None:
        if found.together:
            self._line(f"These {len(found.together)} together would, and none of them can be left out:", "bold")
        for number, change in enumerate(found.together, start=1):
            self._line(f"  {number}. {change.text} (then: node {change.node})")

    def story(self, story: Story) -> None:
        """A pod that has a node."""
        self._line(f"pod {story.pod}: {story.status} on node {story.node}", "bold")
        bound = ""
        if story.bound_at_unix_s:
            bound = f", bound {datetime.datetime.fromtimestamp(story.bound_at_unix_s, datetime.UTC):%Y-%m-%d %H:%M:%SZ}"
        self._line(f"  phase: {story.phase or 'none, HAMi did not bind it'}{bound}")
        self._line(f"  hand-off token of the node: {story.token}")
        if story.problem:
            self._line(f"  its allocation cannot be read: {story.problem}", "red")
        for card in story.cards:
            where = f"card {card.index} {card.type} " if card.index >= 0 else "a card that the node does not register "
            amounts = f"{card.memory_mib} MiB, {card.core_percent} % cores"
            self._line(f"  container {card.container}: {where}({card.device_id}), {amounts}")
        if not story.cards and not story.problem:
            self._line("  it holds no cards")

    def line(self, text: str) -> None:
        """A plain sentence."""
        self._line(text)

    def _answer(self, found: Explanation) -> None:
        pod = found.pod.key
        if found.refusal:
            self._line(f"pod {pod}: refused: {found.refusal}", "bold red")
        elif found.passthrough:
            self._line(f"pod {pod}: asks for no devices, every node will do as far as HAMi is concerned", "bold green")
        elif found.fits:
            self._line(f"pod {pod}: fits, node {found.node} would take it", "bold green")
        else:
            self._line(f"pod {pod}: does not fit on any of {len(found.nodes)} nodes", "bold red")

    def _asked(self, pod: Pod, request: PodRequest) -> None:
        for index, container in enumerate(request.containers):
            for asked in container.devices:
                self._line(f"  {words.container(pod, index, container.kind)} asks for {words.asks(asked)}")

    def _nodes(self, found: Explanation, request: PodRequest) -> None:
        if found.fits:
            chosen = next(each for each in found.nodes if each.name == found.node)
            self._shares(chosen, found.pod, request)
        groups: dict[str, list[NodeAnswer]] = {}
        for answer in found.nodes:
            if answer.text:
                groups.setdefault(answer.text + (answer.name if self._everything else ""), []).append(answer)
        ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].name))
        shown = ordered if self._everything else ordered[:_MOST_GROUPS]
        for group in shown:
            self._group(group, found.pod, request, details=not found.fits or self._everything)
        if len(shown) < len(ordered):
            left = sum(len(group) for group in ordered[len(shown) :])
            self._line(f"{left} more nodes with other reasons; --all shows every node", "dim")

    def _shares(self, answer: NodeAnswer, pod: Pod, request: PodRequest) -> None:
        for report in answer.report.requests if answer.report is not None else ():
            kind = request.containers[report.container].kind
            indexes = {card.device.id: card.device.index for card in report.reports.cards}
            for share in report.shares:
                card = f"card {indexes.get(share.device_id, -1)} ({share.device_id})"
                amounts = f"{share.memory_mib} MiB, {share.core_percent} % cores"
                self._line(f"  {words.container(pod, report.container, kind)} would get {card}: {amounts}")

    def _group(self, group: list[NodeAnswer], pod: Pod, request: PodRequest, *, details: bool) -> None:
        first = group[0]
        names = ", ".join(each.name for each in group[1 : _MOST_NAMES + 1])
        more = f" (and {len(group) - 1} alike: {names}{', …' if len(group) > _MOST_NAMES + 1 else ''})"
        self._line(f"node {first.name}{more if len(group) > 1 else ''}: {first.text}", "bold")
        for report in first.report.requests if first.report is not None and details else ():
            if report.rejection is not None or self._everything:
                self._request(report, pod, request)

    def _request(self, report: RequestReport, pod: Pod, request: PodRequest) -> None:
        kind = request.containers[report.container].kind
        verdict = report.rejection.text if report.rejection is not None else "placed"
        self._line(f"  {words.container(pod, report.container, kind)}, {words.asks(report.request)}: {verdict}")
        for check in report.reports.together:
            if not check.passed:
                self._line(f"    {check.reason}: needs {check.required}, there is {check.available}")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("  CARD", "TYPE", "CHECK", "REQUIRED", "AVAILABLE"):
            table.add_column(column, no_wrap=column in ("  CARD", "CHECK"), overflow="fold")
        for card in report.reports.cards:
            label, model = f"  {card.device.index} {card.device.id}", card.device.type
            checks = [check for check in card.checks if self._everything or not check.passed]
            if card.passed and not self._everything:
                table.add_row(label, model, Text("passes", style="green"), "", "")
            for check in checks:
                style = "green" if check.passed else "red"
                table.add_row(label, model, Text(check.reason, style=style), check.required, check.available)
                label, model = "", ""
        if report.reports.cards:
            self._console.print(table)

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))
