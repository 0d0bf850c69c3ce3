"""What is known of the node's token and pods without asking: from watches, and from every answer to our own calls.

It may be late, so it may only say yes, and only where the write that follows proves it (docs/adr/0014). The token's
pod may then be served from here, under its uid and resourceVersion: whatever frees a token by fact (its owner served,
ended, deleted) writes the owner or removes it, and the write fails. Only time frees a token without touching the owner:
the token must be known to be far younger than any scheduler's patience.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hami.core.device_type import DeviceType
from hami.core.keys import NODE_LOCK
from hami.core.objects import Node, Pod
from hami.core.token import token_of
from hami.core.versions import is_older
from hami.core.whose_call import Call, CallRefusal, whose_calls

_YOUNG: Final = 0.2
"""Part of schedulers' patience: 60 s of 5 min. Proofs come with every heartbeat, each 30 s."""
_ANSWERS: Final = 16


class Found(msgspec.Struct, frozen=True):
    """One pod, one call per container request, and the node as it was known."""

    node: Node
    calls: tuple[Call, ...]

    @property
    def pod(self) -> Pod:
        return self.calls[0].pod


class _Answer(msgspec.Struct, frozen=True):
    """The token's text, as the API server had it at `asked_at_s` or later."""

    asked_at_s: float
    token_text: str


class NodeView:
    """One node and its pods, never older than what was heard last.

    `now_s` is a monotonic clock; `token_expiry_s` is how long schedulers leave the token to a pod that is not served.
    """

    def __init__(self, node_name: str, now_s: Callable[[], float], token_expiry_s: float = 300.0) -> None:
        self._node_name = node_name
        self._young_s = token_expiry_s * _YOUNG
        self.now_s = now_s
        self._node: Node | None = None
        self._pods: dict[str, Pod] = {}
        self._pods_listed = False
        self._answers: deque[_Answer] = deque(maxlen=_ANSWERS)

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The node's pods as the watches and our own calls showed them last."""
        return tuple(self._pods.values())

    # --- what the watches say ----------------------------------------------------------------------------------------

    def node_seen(self, node: Node) -> None:
        """The node as a watch shows it."""
        if node.name == self._node_name and not _goes_back(node, self._node):
            self._node = node

    def node_gone(self) -> None:
        """There is no such node."""
        self._node = None

    def pods_restored(self) -> None:
        """etcd has been restored: what is known is of another history, however new it looks. A list follows."""
        self._pods = {}
        self._pods_listed = False

    def pods_listed(self, pods: Sequence[Pod]) -> None:
        """All pods of this node; what is not among them is gone."""
        known = self._pods
        self._pods = {}
        for pod in pods:
            before = known.get(pod.key)
            self._pods[pod.key] = before if before is not None and _goes_back(pod, before) else pod
        self._pods_listed = True

    def pod_seen(self, pod: Pod) -> None:
        """A pod, from a watch or as the answer to a call of ours."""
        if pod.spec.node_name == self._node_name and not _goes_back(pod, self._pods.get(pod.key)):
            self._pods[pod.key] = pod

    def pod_gone(self, key: str, uid: str = "") -> None:
        """There is no such pod any more (`namespace/name`). With `uid`, another one of that name stays."""
        known = self._pods.get(key)
        if known is not None and uid in ("", known.metadata.uid):
            del self._pods[key]

    # --- what our own calls were answered ----------------------------------------------------------------------------

    def node_answered(self, node: Node, asked_at_s: float) -> None:
        """The node as the API server answered it to a call that was sent at `asked_at_s`."""
        if node.name == self._node_name:
            self._answers.append(_Answer(asked_at_s, node.annotations.get(NODE_LOCK, "")))
            self.node_seen(node)

    # --- what it may say ---------------------------------------------------------------------------------------------

    def find(self, counts: Sequence[int], vendor: DeviceType) -> Found | None:
        """Whose call asks for `counts` devices, if that is beyond doubt; None sends the question to the API server.

        What is found holds only if the pod can be written under the uid and resourceVersion that it has here.
        """
        node = self._node
        token = token_of(node) if node is not None else None
        if node is None or token is None or not token.pod or not self._pods_listed or not self._young(node):
            return None
        owner = self._pods.get(token.key)
        if owner is None or owner.metadata.deletion_timestamp or not owner.metadata.resource_version.isdigit():
            return None
        # Without the token's word: the owner has to be the only one who waits for just that.
        calls = whose_calls(None, list(self._pods.values()), self._node_name, counts, vendor)
        if isinstance(calls, CallRefusal) or not calls or calls[0].pod is not owner:
            return None
        return Found(node, calls)

    def _young(self, node: Node) -> bool:
        """Whether the token was proved absent not long ago: nobody's patience with its owner can be over yet."""
        text = node.annotations.get(NODE_LOCK, "")
        absent = next((each.asked_at_s for each in reversed(self._answers) if each.token_text != text), None)
        return absent is not None and self.now_s() - absent < self._young_s


def _goes_back(fresh: Node | Pod, known: Node | Pod | None) -> bool:
    """Whether `fresh` is an older state of what is known: a watch or a list that comes late."""
    if known is None or fresh.metadata.uid != known.metadata.uid:
        return False
    return is_older(fresh.metadata.resource_version, known.metadata.resource_version)
