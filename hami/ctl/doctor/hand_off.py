"""The hand-off between scheduler and plugin: tokens without an owner, pods that were bound and never served."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from typing import Final

from hami.core import keys
from hami.core.device_type import Registry
from hami.core.errors import DecodeError
from hami.core.objects import Pod
from hami.core.token import TokenAction, judge, parse_token
from hami.core.units import parse_whole
from hami.ctl.doctor.findings import Finding, Severity
from hami.ctl.doctor.snapshot import Snapshot

TOKEN_EXPIRY_S: Final = 300.0
"""`--node-lock-timeout` of upstream and ours where nobody changed it."""
STUCK_S: Final = 60.0

ORPHANED_TOKEN: Final = "orphaned-token"  # noqa: S105 - the name of a check
STUCK_POD: Final = "stuck-pod"
UNACCOUNTED_POD: Final = "unaccounted-pod"
_MOST_DIGITS: Final = 12
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the API server's copy of a static pod."""


def check_tokens(snapshot: Snapshot) -> Iterator[Finding]:
    """Tokens that no bind waits for any more."""
    pods = {pod.key: pod for pod in snapshot.pods}
    for node in snapshot.nodes:
        text = node.annotations.get(keys.NODE_LOCK, "")
        problem = _token_problem(pods, snapshot.unix_s, node.name, text) if text else ""
        if problem:
            yield Finding(
                Severity.WARNING,
                ORPHANED_TOKEN,
                f"node {node.name}",
                f"{keys.NODE_LOCK}={text}: {problem}",
                "this scheduler frees it at the next bind; upstream's lets binds fail until it is 5 minutes old:"
                f" kubectl annotate node {node.name} {keys.NODE_LOCK}-",
            )


def token_node(finding: Finding) -> str:
    """The node of a finding of `check_tokens`."""
    return finding.subject.removeprefix("node ")


def _token_problem(pods: Mapping[str, Pod], unix_s: float, node: str, text: str) -> str:
    try:
        token = parse_token(text)
    except DecodeError as error:
        return error.problem
    verdict = judge(token, pods.get(token.key), node, unix_s, TOKEN_EXPIRY_S)
    return "" if verdict.action is TokenAction.KEEP else verdict.why


def check_pods(snapshot: Snapshot, registry: Registry) -> Iterator[Finding]:
    """Pods between bind and Allocate, and pods that hold cards nobody counts."""
    sharing = {
        node.name for node in snapshot.nodes if any(node.annotations.get(each.register_key) for each in registry)
    }
    locks = {node.name: node.annotations.get(keys.NODE_LOCK, "") for node in snapshot.nodes}
    for pod in snapshot.pods:
        node = pod.spec.node_name
        if not node or pod.finished:
            continue
        if pod.annotations.get(keys.BIND_PHASE):
            yield from _stuck(pod, snapshot.unix_s, locks.get(node, ""))
        elif node in sharing:
            yield from _unaccounted(pod, registry)


def _stuck(pod: Pod, unix_s: float, lock: str) -> Iterator[Finding]:
    phase = pod.annotations[keys.BIND_PHASE]
    age_s = unix_s - _bound_at_unix_s(pod, unix_s)
    if pod.status.phase not in ("", "Pending") or pod.metadata.deletion_timestamp is not None:
        return
    if phase == keys.PHASE_FAILED:
        yield Finding(
            Severity.ERROR,
            STUCK_POD,
            f"pod {pod.key}",
            f"the plugin of node {pod.spec.node_name} could not give it its devices",
            f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name} says why; then delete the pod",
        )
    elif phase == keys.PHASE_ALLOCATING and age_s > STUCK_S:
        yield Finding(
            Severity.ERROR,
            STUCK_POD,
            f"pod {pod.key}",
            f"bound to node {pod.spec.node_name} {age_s:.0f} s ago, and its devices are not allocated; the node's"
            f" token is {lock or 'free'}",
            "is kubelet pulling an image or waiting for a volume (kubectl describe pod)? If not, is the node's device"
            " plugin running? Its log names each call that it refused",
        )


def _bound_at_unix_s(pod: Pod, otherwise: float) -> float:
    """When the pod was bound: the scheduler's stamp, or the API server's where that makes no sense."""
    text = pod.annotations.get(keys.BIND_TIME, "")
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return float(text)
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            with contextlib.suppress(ValueError):
                return datetime.datetime.fromisoformat(condition.last_transition_time).timestamp()
    return otherwise


def _unaccounted(pod: Pod, registry: Registry) -> Iterator[Finding]:
    for vendor in registry:
        asks = any(_count(each.limits.get(vendor.count_resource, 0)) for each in pod.containers)
        if asks and not pod.annotations.get(vendor.allocated_key):
            what, advice = _way_around(pod)
            yield Finding(
                Severity.WARNING,
                UNACCOUNTED_POD,
                f"pod {pod.key}",
                f"{what} on node {pod.spec.node_name}, asks for {vendor.count_resource} and has no allocation: what it"
                " uses is not counted",
                advice,
            )


def _way_around(pod: Pod) -> tuple[str, str]:
    """How the pod came to its node without an allocation, and what to do."""
    if _MIRROR in pod.annotations:
        advice = (
            "kubelet starts static pods from files and nobody schedules them, so none of them can have a share: make it"
            " a DaemonSet or a Deployment with a node selector"
        )
        return "is a static pod", advice
    advice = (
        f"it was placed by {pod.spec.scheduler_name or 'nobody'} around the webhook: is the webhook reachable,"
        f" does its namespace or the pod carry {keys.WEBHOOK_LABEL}={keys.WEBHOOK_IGNORE}, was it created with a"
        " nodeName? Create it anew"
    )
    return "is", advice


def _count(quantity: str | float) -> int:
    try:
        return parse_whole(quantity)
    except ValueError:
        return 1
