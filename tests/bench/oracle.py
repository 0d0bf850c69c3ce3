"""The check that comes before every number: ours and the reference give the same node and the same cards."""

from __future__ import annotations

import time

from tests.bench.figures import percentile
from tests.reference.model import Decision, Object
from tests.reference.reference import UNDECODABLE
from tests.reference.subject import Subject
from tests.reference.worlds import World


def differences(ours: Decision, reference: Decision) -> list[str]:
    """What differs in node, cards and reasons; empty if nothing does."""
    if reference.error:
        placed = ours.node is not None or ours.passthrough
        return ["the reference calls the input wrong, ours placed the pod"] if placed else []
    parts = [(name, getattr(ours, name), getattr(reference, name)) for name in ("passthrough", "node", "annotations")]
    found = [f"{name}: ours {mine!r}, reference {theirs!r}" for name, mine, theirs in parts if mine != theirs]
    if reference.node is None and ours.node is None:
        for name, reason in reference.failed.items():
            text = ours.failed.get(name, "(nothing)")
            if not same_reason(text, reason):
                found.append(f"reason of {name}: ours {text!r}, reference {reason!r}")
    return found or _event_differences(ours, reference)


def _event_differences(ours: Decision, reference: Decision) -> list[str]:
    """Failures: the same events. Success: the chosen node and its score (ours lists at most ten nodes, best first)."""
    if reference.node is None:
        mine, theirs = list(map(_cut, ours.events)), list(map(_cut, reference.events))
        return [] if mine == theirs else [f"events: ours {mine}, reference {theirs}"]
    score = f"{reference.node}:{reference.scores[reference.node]:.2f}"
    start = f"find fit node({reference.node}), "
    texts = [text for kind, reason, text in ours.events if (kind, reason) == ("Normal", "FilteringSucceed")]
    told = [text for text in texts if text.startswith(start) and f"{score}," in text.replace(")", ",")]
    return (
        [] if len(told) == len(ours.events) == 1 else [f"events: ours {ours.events}, expected {start!r} with {score}"]
    )


def _cut(event: tuple[str, str, str]) -> tuple[str, str, str]:
    """Long lists of nodes are cut by ours (spec/scheduler 4.8, trap): only what comes before them is compared."""
    kind, reason, text = event
    return (kind, reason, text.split("(", 1)[0] if len(text) > 800 else text)


def same_reason(ours: str, reference: str) -> bool:
    """Texts are equal; ours may say more after `node unregistered`, and has words of its own for broken allocations."""
    if reference == UNDECODABLE:
        return "takes no new shares" in ours
    return ours == reference or (reference == "node unregistered" and ours.startswith("node unregistered"))


def compare(subject: Subject, world: World, pods: list[Object], names: list[str]) -> tuple[list[str], float]:
    """Place the pods with both, one after another.

    Returns:
        The differences, each with the pod's name, and the reference's p50 in microseconds.
    """
    found, taken = [], []
    for pod in pods:
        start = time.perf_counter_ns()
        reference = world.decide(pod, names)
        taken.append((time.perf_counter_ns() - start) / 1000)
        ours = subject.decide(pod, names)
        found += [f"{pod['metadata']['name']}: {text}" for text in differences(ours, reference)]
        world.hold(pod, reference, bound=False)
    return found, percentile(taken, 0.5)
