"""Bind calls under way: who waits and may still be called off, who writes and must run to its end (design 3)."""

from __future__ import annotations

import asyncio


class BindCall:
    """One `/bind`. `task` does the work; while `writing` is false it may be cancelled without a trace."""

    __slots__ = ("called_off", "name", "namespace", "node", "task", "uid", "writing")

    def __init__(self, namespace: str, name: str, uid: str, node: str) -> None:
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.node = node
        self.writing = False
        self.called_off = ""
        self.task: asyncio.Task[str] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class InFlight:
    """Bind calls by pod uid; at most one per pod."""

    def __init__(self) -> None:
        self._calls: dict[str, BindCall] = {}

    def get(self, uid: str) -> BindCall | None:
        return self._calls.get(uid)

    def add(self, call: BindCall) -> None:
        self._calls[call.uid] = call

    def remove(self, call: BindCall) -> None:
        if self._calls.get(call.uid) is call:
            del self._calls[call.uid]

    def writing_node(self, uid: str) -> str:
        """The node that the pod is being bound to; empty if nothing is written yet."""
        call = self._calls.get(uid)
        return call.node if call is not None and call.writing else ""

    def call_off(self, uid: str, why: str) -> None:
        """Cancels the pod's call if it has written nothing."""
        call = self._calls.get(uid)
        if call is not None and not call.writing and call.task is not None:
            call.called_off = why
            call.task.cancel()
            self.remove(call)

    def call_off_all(self, why: str) -> None:
        for uid in list(self._calls):
            self.call_off(uid, why)

    @property
    def tasks(self) -> list[asyncio.Task[str]]:
        return [call.task for call in self._calls.values() if call.task is not None]
