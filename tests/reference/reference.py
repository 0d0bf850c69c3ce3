"""`decide`: one `/filter` call, from raw API objects to the answer (4.2, 4.3, 4.7, 4.8)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import combinations

from tests.reference.allocations import (
    ALLOCATED,
    MIG_KEY,
    NODE_KEY,
    TO_ALLOCATE,
    apply_pods,
    collapse,
    encode,
    encode_mig,
    node_of,
)
from tests.reference.fit import Rules, Walk, charge, mode_fits, rules_of
from tests.reference.inventory import read_node
from tests.reference.model import Card, Config, Container, Decision, Grant, Node, Object, Request
from tests.reference.objects import name_of, namespace_of
from tests.reference.order import (
    WeightsError,
    card_score,
    gpu_policies,
    is_numa_bound,
    node_is_spread,
    node_score,
    scoring_weights,
    walk_order,
)
from tests.reference.quota import Quota, quota_of
from tests.reference.requests import containers_of

UNREGISTERED = "node unregistered"
UNDECODABLE = "AllocationUndecodable"
"""Our own reason: upstream has none, it forgets such pods (design 5)."""


def decide(
    nodes: list[Object],
    pods: list[Object],
    pod: Object,
    names: list[str],
    config: Config,
    quotas: list[Object] | None = None,
) -> Decision:
    """Answer one filter call.

    Args:
        nodes: v1 Node objects.
        pods: v1 Pod objects; those with an allocation annotation count against their node.
        pod: the pod to place (an entry of its own in `pods` is dropped first, 4.2 step 3).
        names: candidate node names of the request.
        config: resource names, defaults and default policies.
        quotas: v1 ResourceQuota objects.
    """
    containers = containers_of(pod, config)
    if not any(container.request for container in containers):
        return Decision(None, passthrough=True)
    others = [other for other in pods if other["metadata"].get("uid") != pod["metadata"].get("uid")]
    try:
        weights = scoring_weights(pod)
    except WeightsError as err:
        text = f"calcScore failed {err} for pod {name_of(pod)}"
        return Decision(None, events=[("Warning", "FilteringFailed", text)], error=text)
    registered = {node.name: node for node in (read_node(item) for item in nodes) if node is not None}
    apply_pods(registered, others)
    quota = quota_of(namespace_of(pod), quotas or [], others, config)
    rules = rules_of(pod, gpu_policies(pod, config), is_numa_bound(pod))
    attempts = {}
    failed = {}
    for name in names:
        attempt = Attempt(registered[name], containers, rules, weights, quota) if name in registered else None
        if attempt is not None and attempt.run():
            attempts[name] = attempt
        else:
            failed[name] = UNREGISTERED if attempt is None else attempt.reason
    if not attempts:
        return Decision(None, failed=failed, events=_failure_events(failed, len(names)))
    return _success(attempts, failed, len(names), node_is_spread(pod, config))


@dataclass(slots=True)
class Attempt:
    """One node: does the pod fit, on which cards, with which score (4.3)."""

    node: Node
    containers: list[Container]
    rules: Rules
    weights: tuple[int, int, int]
    quota: Quota
    score: float = 0.0
    reason: str = ""
    grants: dict[int, list[Grant]] = field(default_factory=dict)

    def run(self) -> bool:
        if self.node.blocked:
            self.reason = UNDECODABLE
            return False
        self.score = node_score(self.node.cards)
        base = deepcopy(self.node.cards)
        return (
            all(self._place(i, base) for i in self._of_role("sidecar"))
            and all(self._place(i, deepcopy(base)) for i in self._of_role("init"))
            and all(self._place(i, base) for i in self._of_role("app"))
            and self._slices_agree()
        )

    def _slices_agree(self) -> bool:
        """MIG instances live as long as the pod: an init container's may equal another's but not overlap it."""
        slices = [(i, grant) for i, grants in self.grants.items() for grant in grants if grant.mig is not None]
        for (i, one), (j, other) in combinations(slices, 2):
            if i != j and one.uuid == other.uuid and one.mig != other.mig and _overlap(one, other):
                candidates = sum("nvidia" in card.type.lower() for card in self.node.cards)
                self.reason = f"1/{candidates} CardMigTopologyInfeasible"
                return False
        return True

    def placement(self) -> list[list[Grant]]:
        return [self.grants[i] for i in range(len(self.containers))]

    def _of_role(self, role: str) -> list[int]:
        return [i for i, container in enumerate(self.containers) if container.role == role]

    def _place(self, i: int, cards: list[Card]) -> bool:
        """Give container `i` its cards out of `cards` and charge them there."""
        request = self.containers[i].request
        if request is None:
            self.grants[i] = []
            return True
        candidates = [card for card in cards if "nvidia" in card.type.lower()]
        if request.nums > len(candidates) and not self._mig_may_hold_several(candidates):
            self.reason = "NodeInsufficientDevice"
            return False
        granted = self._walk(i, request, candidates)
        if granted is None:
            return False
        self.grants[i] = granted
        by_uuid = {card.uuid: card for card in cards}
        for grant in granted:
            charge(by_uuid[grant.uuid], grant)
        return True

    def _walk(self, i: int, request: Request, candidates: list[Card]) -> list[Grant] | None:
        scores = {card.uuid: card_score(card, request, self.weights) for card in candidates}
        ordered = walk_order(candidates, scores, self.rules.policies, self.rules.numa_bind)
        walk = Walk(ordered, request, self.rules, lambda taken: self._quota_allows(i, taken))
        granted = walk.run(self.node)
        if granted is None:
            counted = sorted(f"{count}/{len(candidates)} {reason}" for reason, count in walk.reasons.items())
            self.reason = ", ".join(counted)
        return granted

    def _mig_may_hold_several(self, candidates: list[Card]) -> bool:
        return any(card.is_mig for card in candidates) and mode_fits("mig", self.rules)

    def _quota_allows(self, i: int, taken: list[Grant]) -> bool:
        so_far = {**self.grants, i: taken}
        return self.quota.allows(collapse([(self.containers[k].role, grants) for k, grants in so_far.items()]))


def _overlap(one: Grant, other: Grant) -> bool:
    assert one.mig is not None
    assert other.mig is not None
    return one.mig.start < other.mig.start + other.mig.size and other.mig.start < one.mig.start + one.mig.size


def _success(attempts: dict[str, Attempt], failed: dict[str, str], asked: int, spread: bool) -> Decision:
    """Sort the nodes, take the last (4.4); among equal scores the first name comes last."""
    by_name = sorted(attempts, reverse=True)
    ordered = sorted(by_name, key=lambda name: -attempts[name].score if spread else attempts[name].score)
    best = ordered[-1]
    placement = attempts[best].placement()
    text = encode(placement)
    written = {NODE_KEY: best, TO_ALLOCATE: text, ALLOCATED: text}
    migs = encode_mig(placement)
    if migs:
        written[MIG_KEY] = migs
    listed = ",".join(f"{name}:{attempts[name].score:.2f}" for name in ordered)
    counts = f"{asked - len(ordered)} nodes not fit, {len(ordered)} nodes fit"
    event = ("Normal", "FilteringSucceed", f"find fit node({best}), {counts}({listed})")
    scores = {name: attempts[name].score for name in ordered}
    return Decision(best, written, failed, [event], scores)


def _failure_events(failed: dict[str, str], asked: int) -> list[tuple[str, str, str]]:
    """One event per reason word with the names of its nodes, then the summary (4.8)."""
    by_reason: dict[str, list[str]] = {}
    for name, text in failed.items():
        for part in text.split(", "):
            counts, _, word = part.partition(" ")
            if "/" in counts and word:
                by_reason.setdefault(word, []).append(name)
    events = [
        ("Warning", "FilteringFailed", f"{len(found)} nodes {word}({','.join(sorted(found))})")
        for word, found in sorted(by_reason.items())
    ]
    return [*events, ("Warning", "FilteringFailed", f"no available node, {asked} nodes do not meet")]


__all__ = ["UNDECODABLE", "UNREGISTERED", "Config", "Decision", "decide", "node_of"]
