"""An explanation or a story as one JSON document (`-o json`)."""

from __future__ import annotations

from typing import Any

import msgspec

from hami.core.device_type import CardReport
from hami.core.explain import RequestReport
from hami.core.model import PodRequest
from hami.core.objects import Pod
from hami.ctl.explain import words
from hami.ctl.explain.story import Story
from hami.placement.explain import Explanation, NodeAnswer


def document(found: Explanation, notes: list[str]) -> dict[str, Any]:
    """Every node, card and check. `fits` is the answer, `node` where the pod would go."""
    nodes = [_node(each, found.pod, found.request) for each in found.nodes] if found.request is not None else []
    return {
        "pod": found.pod.key,
        "fits": found.fits,
        "node": found.node,
        "refusal": found.refusal,
        "asksForDevices": not found.passthrough,
        "requests": _asked(found.pod, found.request) if found.request is not None else [],
        "quota": found.excess.text if found.excess is not None else "",
        "nodes": nodes,
        "changes": [_change(each) for each in msgspec.to_builtins(found.changes)],
        "pairs": [[_change(each) for each in pair] for pair in msgspec.to_builtins(found.pairs)],
        "together": [_change(each) for each in msgspec.to_builtins(found.together)],
        "onEmptyNode": found.on_empty_node,
        "notes": notes,
    }


def story_document(story: Story) -> dict[str, Any]:
    """A pod that has a node."""
    return {"pod": story.pod, "story": msgspec.to_builtins(story)}


def _asked(pod: Pod, request: PodRequest) -> list[dict[str, Any]]:
    return [
        {"container": pod.containers[index].name, "kind": container.kind.value, **msgspec.to_builtins(asked)}
        for index, container in enumerate(request.containers)
        for asked in container.devices
    ]


def _node(answer: NodeAnswer, pod: Pod, request: PodRequest) -> dict[str, Any]:
    requests = answer.report.requests if answer.report is not None else ()
    return {
        "name": answer.name,
        "fits": not answer.text,
        "text": answer.text,
        "requests": [_request(each, pod, request) for each in requests],
    }


def _request(report: RequestReport, pod: Pod, request: PodRequest) -> dict[str, Any]:
    kind = request.containers[report.container].kind
    return {
        "container": pod.containers[report.container].name,
        "kind": kind.value,
        "asks": words.asks(report.request),
        "rejection": report.rejection.text if report.rejection is not None else "",
        "cards": [share.device_id for share in report.shares],
        "together": msgspec.to_builtins(report.reports.together),
        "checked": [_card(card) for card in report.reports.cards],
    }


def _card(card: CardReport) -> dict[str, Any]:
    device = card.device
    return {
        "id": device.id,
        "index": device.index,
        "type": device.type,
        "passed": card.passed,
        "used": msgspec.to_builtins(card.use),
        "registered": {
            "slots": device.slots,
            "memory_mib": device.memory_mib,
            "core_percent": device.core_percent,
        },
        "checks": msgspec.to_builtins(card.checks),
    }


def _change(change: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in change.items() if key != "part"}
