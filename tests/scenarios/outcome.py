"""What became of a pod, in words that do not depend on the world; and how that compares with what was expected."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from tests.scenarios.model import PENDING, RUNNING, Expect, Share
from tests.scenarios.objects import ALLOCATED, Names, read_allocation

Object = dict[str, Any]

OURS = ("FilteringFailed", "FilteringSucceed", "BindingFailed", "BindingSucceed")
SCHEDULED, FAILED_SCHEDULING = "Scheduled", "FailedScheduling"
PLACED = ["BindingSucceed", "FilteringSucceed", SCHEDULED]
REFUSED_BY_ALL = ["FailedScheduling", "FilteringFailed"]
_AVAILABLE = re.compile(r"^\d+/\d+ nodes are available: ?")
_OTHERS = re.compile(r"\d+ node\(s\) (didn't match Pod's node affinity/selector|had untolerated taint[^,.]*)(, |\.? ?)")
_PORT = re.compile(r"127\.0\.0\.1:\d+")
_SUMMARY = "no available node"
_PREEMPTION = re.compile(r"\.? ?(preemption: .*|no new claims to deallocate.*)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One pod at one moment."""

    refused: str = ""
    gone: bool = False
    node: str = ""
    phase: str = ""
    terminating: bool = False
    shares: tuple[tuple[tuple[int, int, int], ...], ...] | None = None
    scheduled: str = ""
    """True, or the reason of PodScheduled=False; empty before kube-scheduler looked."""
    events: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    """Messages of our own events."""
    why: tuple[str, ...] = ()
    """kube-scheduler's last reasons for this scenario's nodes."""

    def differences(self, other: Outcome, loose: Sequence[str]) -> list[str]:
        """Fields that are not alike, in words."""
        return [
            f"{field.name}: {mine!r} against {theirs!r}"
            for field in dataclasses.fields(self)
            if field.name not in loose and (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        ]


def reasons(text: str) -> tuple[str, ...]:
    """What kube-scheduler says about this scenario's nodes: counts of all others and of preemption are left out.

    `0/9 nodes are available: 1 node unregistered, 8 node(s) didn't match …. preemption: …` → `1 node unregistered`.
    """
    shown = _PREEMPTION.sub("", _OTHERS.sub("", _AVAILABLE.sub("", text))).strip(" ,.")
    return tuple(part.strip() for part in shown.split(", ") if part.strip())


def refusal(text: str, names: Names) -> Outcome:
    """The outcome of a pod that the API server did not take; free ports of loopback are left out of its words."""
    return Outcome(refused=_PORT.sub("127.0.0.1:PORT", names.shorten(text)))


def observe(pod: Object, events: Sequence[Object], names: Names) -> Outcome:
    """The outcome of a pod that exists."""
    own = [event for event in events if event["involvedObject"].get("uid") == pod["metadata"]["uid"]]
    own.sort(key=_event_time)
    node = names.short_node(pod["spec"].get("nodeName", ""))
    text = (pod["metadata"].get("annotations") or {}).get(ALLOCATED)
    shares = read_allocation(text, names.cards(node)) if node and text else None
    messages = [(event["reason"], names.shorten(event.get("message") or "")) for event in own]
    failures = [message for reason, message in messages if reason == FAILED_SCHEDULING]
    status = pod.get("status") or {}
    return Outcome(
        node=node,
        phase=status.get("phase", ""),
        terminating="deletionTimestamp" in pod["metadata"],
        shares=tuple(tuple((one.card, one.memory, one.cores) for one in part) for part in shares) if shares else None,
        scheduled=_scheduled(status),
        events=tuple(sorted({reason for reason, _ in messages})),
        says=tuple(sorted({message for reason, message in messages if reason in OURS})),
        why=reasons(failures[-1]) if failures and not node else (),
    )


def _event_time(event: Object) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    stamp = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return str(stamp)


def _scheduled(status: Object) -> str:
    for one in status.get("conditions") or []:
        if one["type"] == "PodScheduled":
            return "True" if one["status"] == "True" else str(one.get("reason", ""))
    return ""


def mismatches(expect: Expect, found: Outcome, names: Names, ordinary: Sequence[str] | None) -> list[str]:
    """What is not as expected. `ordinary`: events of a pod without surprises, None for one that nobody placed."""
    if expect.refused:
        missing = [words for words in expect.refused if names.fill(words) not in found.refused]
        return [f"refusal lacks {words!r}, says {found.refused!r}" for words in missing]
    if found.refused:
        return [f"was refused: {found.refused}"]
    if expect.gone or found.gone:
        return [] if expect.gone and found.gone else ["still exists" if expect.gone else "does not exist"]
    wanted: dict[str, object] = {"node": expect.node, "terminating": expect.terminating}
    wanted["phase"] = expect.phase or (RUNNING if expect.node else PENDING)
    wanted["scheduled"] = "True" if expect.node else expect.reason
    wanted["events"] = tuple(sorted((ordinary or ()) if expect.events is None else expect.events))
    if ordinary is None:
        del wanted["scheduled"]
    missing = [text for text in expect.says if text not in found.says]
    if "FilteringFailed" in found.events and not any(text.startswith(_SUMMARY) for text in found.says):
        missing.append(_SUMMARY)  # the last event of a refusal: without it the outcome is not complete
    if expect.shares is not None:
        wanted["shares"] = _plain(expect.shares)
    if expect.waits:
        wanted["why"] = tuple(expect.waits)
    problems = [
        f"{field} is {getattr(found, field)!r}, expected {value!r}"
        for field, value in wanted.items()
        if getattr(found, field) != value
    ]
    return problems + [f"no event says {text!r}, but {found.says}" for text in missing]


def _plain(shares: Sequence[Sequence[Share]]) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    return tuple(tuple((one.card, one.memory, one.cores) for one in part) for part in shares)
