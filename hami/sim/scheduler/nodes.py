"""The scheduler's picture of nodes, and the checks of its default filter plugins that our pods can meet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hami.sim.objects import Obj, dig
from hami.sim.pod_resources import amounts, pod_requests
from hami.sim.requirements import holds
from hami.sim.scheduler.config import SchedulerConfig

_UNSCHEDULABLE_TAINT: Obj = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_MIN_NODES = 100
_MIN_PERCENTAGE = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node is out: reasons in kube-scheduler's words; `resolvable` where evicting pods could help."""

    reasons: tuple[str, ...]
    resolvable: bool


@dataclass(slots=True)
class NodeInfo:
    """One node with the requests of the pods on it, assumed ones included (by uid)."""

    node: Obj
    allocatable: Counter[str]
    pods: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def requested(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for requests in self.pods.values():
            total.update(requests)
        return total


class Snapshot:
    """Nodes in the order in which they appeared, and who is on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self._homeless: dict[str, dict[str, Counter[str]]] = {}

    def set_node(self, node: Obj) -> None:
        name, allocatable = node["metadata"]["name"], amounts(dig(node, "status", "allocatable"))
        info = self.nodes.get(name)
        if info is None:
            self.nodes[name] = NodeInfo(node, allocatable, self._homeless.pop(name, {}))
        else:
            info.node, info.allocatable = node, allocatable

    def remove_node(self, name: str) -> None:
        info = self.nodes.pop(name, None)
        if info is not None and info.pods:
            self._homeless[name] = info.pods

    def place(self, pod: Obj, node_name: str) -> None:
        """Count the pod on the node, which may be unknown yet."""
        info = self.nodes.get(node_name)
        pods = info.pods if info else self._homeless.setdefault(node_name, {})
        pods[pod["metadata"]["uid"]] = pod_requests(pod)

    def forget(self, uid: str, node_name: str) -> None:
        info = self.nodes.get(node_name)
        (info.pods if info else self._homeless.get(node_name, {})).pop(uid, None)


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def tolerated(pod: Obj, taint: Obj) -> bool:
    """Whether one of the pod's tolerations covers the taint."""
    return any(_tolerates(toleration, taint) for toleration in dig(pod, "spec", "tolerations", default=[]))


def _expression_matches(expression: Obj, labels: Obj) -> bool:
    return holds(labels, expression["key"], expression["operator"], expression.get("values") or [])


def _affinity_matches(pod: Obj, node: Obj) -> bool:
    labels = dig(node, "metadata", "labels", default={})
    if any(labels.get(key) != value for key, value in dig(pod, "spec", "nodeSelector", default={}).items()):
        return False
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = dig(pod, "spec", "affinity", "nodeAffinity", required, "nodeSelectorTerms")
    if terms is None:
        return True
    by_field = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_expression_matches(one, labels) for one in term.get("matchExpressions") or [])
        and all(_expression_matches(one, by_field) for one in term.get("matchFields") or [])
        for term in terms
    )


def _resources_missing(requests: Counter[str], info: NodeInfo, ignored: frozenset[str]) -> Refusal | None:
    reasons, resolvable, requested = [], True, info.requested
    if len(info.pods) + 1 > info.allocatable.get("pods", 0):
        reasons.append("Too many pods")
    for name, amount in requests.items():
        if amount and name not in ignored and amount > info.allocatable[name] - requested[name]:
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and amount <= info.allocatable[name]
    return Refusal(tuple(reasons), resolvable) if reasons else None


def check(pod: Obj, requests: Counter[str], info: NodeInfo, ignored: frozenset[str]) -> Refusal | None:
    """The first plugin that refuses the node, in the default profile's order; None where all accept."""
    node = info.node
    if dig(node, "spec", "unschedulable") and not tolerated(pod, _UNSCHEDULABLE_TAINT):
        return Refusal(("node(s) were unschedulable",), False)
    taints = [taint for taint in dig(node, "spec", "taints", default=[]) if taint.get("effect") != "PreferNoSchedule"]
    if any(not tolerated(pod, taint) for taint in taints):
        return Refusal(("node(s) had untolerated taint(s)",), False)
    if not _affinity_matches(pod, node):
        return Refusal(("node(s) didn't match Pod's node affinity/selector",), False)
    return _resources_missing(requests, info, ignored)


def nodes_to_find(total: int, percentage: int) -> int:
    """numFeasibleNodesToFind: at how many fitting nodes the search stops."""
    if total < _MIN_NODES:
        return total
    if percentage == 0:
        percentage = max(50 - total // 125, _MIN_PERCENTAGE)
    return max(total * percentage // 100, _MIN_NODES)


def least_allocated(requests: Counter[str], info: NodeInfo) -> int:
    """NodeResourcesFit's default score over cpu and memory, 0 to 100."""
    requested, scores = info.requested, []
    for name in ("cpu", "memory"):
        capacity = info.allocatable[name]
        if capacity:
            scores.append(max(capacity - requested[name] - requests[name], 0) * 100 // capacity)
    return sum(scores) // len(scores) if scores else 0


class Search:
    """Filtering with the sampling rule; remembers where the last search ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._start = 0

    def run(self, pod: Obj, snapshot: Snapshot) -> tuple[list[NodeInfo], dict[str, Refusal]]:
        """Fitting nodes in the order found (not all of a large cluster) and the refusals by node."""
        infos, requests = list(snapshot.nodes.values()), pod_requests(pod)
        wanted = nodes_to_find(len(infos), self._config.percentage_of_nodes_to_score)
        fitting: list[NodeInfo] = []
        refused: dict[str, Refusal] = {}
        for offset in range(len(infos)):
            if len(fitting) >= wanted:
                break
            info = infos[(self._start + offset) % len(infos)]
            refusal = check(pod, requests, info, self._config.ignored)
            if refusal is None:
                fitting.append(info)
            else:
                refused[info.name] = refusal
        self._start = (self._start + len(fitting) + len(refused)) % max(len(infos), 1)
        return fitting, refused
