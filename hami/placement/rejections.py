"""Nodes whose kubelet rejects pods that have room by our books (report B92).

kubelet counts device ids of pods that failed or were deleted by force as taken for a while, or its device plugin is
broken: then each new pod fails at once, and its controller makes the next one. After some rejections in a row such a
node comes last; after more it takes no new shares for a pause, which doubles. One pod that runs ends all of that.
"""

from __future__ import annotations

from typing import Final

import structlog

from hami.core import keys
from hami.core.objects import Pod
from hami.placement.ports import EventSink

SET_BACK_AFTER: Final = 3
PAUSE_AFTER: Final = 5
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 300.0
FORGET_S: Final = 1800.0
"""Rejections longer ago than this say nothing about now."""
_PLUGIN_AWAY: Final = ("code = Unavailable", "no healthy devices", "unregistered device")
"""What kubelet says while the plugin is away or starts anew: it offers nothing meanwhile, which needs no pause."""
_MOST_UIDS: Final = 64
_MESSAGE_CHARS: Final = 200

log = structlog.get_logger("hami.placement.rejections")


class _Row:
    """Rejections of one node since the last pod that ran there."""

    __slots__ = ("away", "count", "last_s", "last_unix_s", "message", "paused_until_s", "uids")

    def __init__(self) -> None:
        self.count = 0
        self.away = 0
        """Of these, those while the plugin was away."""
        self.uids: dict[str, None] = {}
        """Pods counted lately: the watch shows each several times."""
        self.last_s = 0.0
        self.last_unix_s = 0.0
        self.paused_until_s = 0.0
        self.message = ""


class Rejections:
    """Counts by node. `sink` tells operators; feed it pods as the watch shows them."""

    def __init__(self) -> None:
        self.sink: EventSink | None = None
        self._rows: dict[str, _Row] = {}
        self.ended: set[str] = set()
        """Nodes whose pause began or ended since they were last looked at."""

    def saw(self, pod: Pod, now_s: float, now_unix_s: float) -> None:
        """A pod as the watch shows it. Cheap for all that were not rejected while no node is in trouble."""
        if pod.status.phase == "Failed":
            node = pod.spec.node_name
            if node and pod.annotations.get(keys.VGPU_NODE) == node and _by_kubelet(pod):
                self._count(node, pod, now_s, now_unix_s)
        elif self._rows and pod.status.phase == "Running":
            row = self._rows.get(pod.spec.node_name)
            if row is not None and _bound_after(pod, row.last_unix_s):
                self.forget(pod.spec.node_name)

    def forget(self, node: str) -> None:
        """The node is gone, or a pod runs there."""
        if self._rows.pop(node, None) is not None:
            self.ended.add(node)

    def set_back(self, now_s: float) -> set[str]:
        """Nodes that come last in every choice."""
        if not self._rows:
            return set()
        for node in [node for node, row in self._rows.items() if now_s - row.last_s >= FORGET_S]:
            self.forget(node)
        return {node for node, row in self._rows.items() if row.count >= SET_BACK_AFTER}

    def expire(self, now_s: float) -> set[str]:
        """Nodes whose pause began or ended: they have to be looked at again."""
        for node, row in self._rows.items():
            if row.paused_until_s and row.paused_until_s <= now_s:
                row.paused_until_s = 0.0
                self.ended.add(node)
        changed, self.ended = self.ended, set()
        return changed

    def problem(self, node: str) -> str:
        """Why the node takes no new shares for now; empty if it does."""
        row = self._rows.get(node)
        if row is None or not row.paused_until_s:
            return ""
        return f"takes no new shares for now: kubelet rejected the last {row.count} pods, {row.message}"

    def _count(self, node: str, pod: Pod, now_s: float, now_unix_s: float) -> None:
        row = self._rows.setdefault(node, _Row())
        if pod.metadata.uid in row.uids:
            return
        if now_s - row.last_s >= FORGET_S:
            row.count = row.away = 0
        row.count += 1
        row.uids = dict.fromkeys([*row.uids, pod.metadata.uid][-_MOST_UIDS:])
        row.last_s, row.last_unix_s = now_s, now_unix_s
        row.message = (pod.status.message or pod.status.reason or "")[:_MESSAGE_CHARS]
        log.warning("kubelet rejected a pod", node=node, pod=pod.key, in_a_row=row.count, message=row.message)
        away = any(words in (pod.status.message or "") for words in _PLUGIN_AWAY)
        row.away += away
        refused = row.count - row.away
        if not away and refused >= PAUSE_AFTER:
            pause_s = min(FIRST_PAUSE_S * 2 ** min(refused - PAUSE_AFTER, 16), LONGEST_PAUSE_S)
            row.paused_until_s = now_s + pause_s
            self.ended.add(node)
        if row.count == SET_BACK_AFTER or (not away and refused == PAUSE_AFTER):
            self._tell(node, row)

    def _tell(self, node: str, row: _Row) -> None:
        if self.sink is None:
            return
        what = "gets no pods for a while" if row.paused_until_s else "is tried last from now on"
        words = f"kubelet rejected {row.count} pods in a row that have room by HAMi's books: node {node} {what}."
        hint = "Look at the device plugin there; kubelet may count devices of ended pods, a restart of it frees them"
        self.sink.node_event(
            node, warning=True, reason=keys.EVENT_PODS_REJECTED, message=f"{words} {hint}. Last: {row.message}"
        )


def _by_kubelet(pod: Pod) -> bool:
    """Whether kubelet refused the pod at admission, before it ran, for want of devices."""
    reason = pod.status.reason or ""
    return reason == "UnexpectedAdmissionError" or (reason.startswith("OutOf") and "/" in reason)


def _bound_after(pod: Pod, unix_s: float) -> bool:
    """Whether the pod got its cards after that moment: older ones say nothing about kubelet now."""
    text = pod.annotations.get(keys.BIND_TIME, "")
    return pod.annotations.get(keys.BIND_PHASE) == keys.PHASE_SUCCESS and text.isdecimal() and int(text) >= unix_s
