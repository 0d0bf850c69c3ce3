"""What kube-scheduler tells about a pod: the FitError text, events and the PodScheduled condition."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hami.core.errors import TransportError
from hami.sim.client import STRATEGIC, ApiClient
from hami.sim.errors import StatusError
from hami.sim.objects import Obj, micro_timestamp, timestamp
from hami.sim.scheduler.nodes import Refusal

NO_NODES: Final = "no nodes available to schedule pods"
_NOTE_LIMIT: Final = 1024


def _histogram(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))


def fit_error(total: int, refused: Mapping[str, Refusal]) -> str:
    """`0/3 nodes are available: 2 Insufficient cpu, 1 …. no new claims to deallocate, preemption: …`.

    The tail are the PostFilter plugins of 1.34 (dynamic resources, preemption); nothing is ever preempted here.
    """
    reasons = Counter(reason for refusal in refused.values() for reason in refusal.reasons)
    text = f"0/{total} nodes are available:"
    if reasons:
        text += f" {_histogram(reasons)}."
    candidates = sum(refusal.resolvable for refusal in refused.values())
    outcome = Counter(
        {
            "No preemption victims found for incoming pod": candidates,
            "Preemption is not helpful for scheduling": total - candidates,
        }
    )
    return f"{text} no new claims to deallocate, preemption: 0/{total} nodes are available: {_histogram(+outcome)}."


class Reporter:
    """Writes events and conditions; a failure to write is not the pod's problem, as in the real scheduler."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def event(self, pod: Obj, event_type: str, reason: str, action: str, note: str) -> None:
        """One events.k8s.io/v1 event; the same one again becomes its series."""
        meta, scheduler = pod["metadata"], pod["spec"]["schedulerName"]
        same = hashlib.sha256(f"{meta['uid']}{event_type}{reason}{note}".encode()).hexdigest()[:16]
        name = f"{meta['name']}.{same}"
        path = f"/apis/events.k8s.io/v1/namespaces/{meta['namespace']}/events"
        body = {
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "eventTime": micro_timestamp(),
            "type": event_type,
            "reason": reason,
            "action": action,
            "note": note if len(note) <= _NOTE_LIMIT else note[: _NOTE_LIMIT - 4] + " ...",
            "regarding": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "reportingController": scheduler,
            "reportingInstance": f"{scheduler}-sim",
        }
        try:
            await self._write(path, name, body)
        except (StatusError, TransportError):
            return

    async def _write(self, path: str, name: str, body: Obj) -> None:
        try:
            await self._client.request("POST", path, body)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            old = await self._client.request("GET", f"{path}/{name}")
            count = int((old.get("series") or {}).get("count") or 1) + 1
            series = {"series": {"count": count, "lastObservedTime": micro_timestamp()}}
            await self._client.request("PATCH", f"{path}/{name}", series, content_type=STRATEGIC)

    async def condition(self, pod: Obj, reason: str, message: str) -> None:
        """PodScheduled=False, unless it says the same already."""
        wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        for have in (pod.get("status") or {}).get("conditions") or []:
            if all(have.get(key) == value for key, value in wanted.items()):
                return
        meta = pod["metadata"]
        body = {
            "metadata": {"uid": meta["uid"]},
            "status": {"conditions": [{**wanted, "lastTransitionTime": timestamp()}]},
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        try:
            await self._client.request("PATCH", path, body, content_type=STRATEGIC)
        except (StatusError, TransportError):
            return
