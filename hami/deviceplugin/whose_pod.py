"""Finds the pod of a kubelet call by live reads (design 3, "Whose Allocate is it").

No cache: a stale one could serve a stranger, and a live read is cheap beside a pod's start.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami.core.device_type import DeviceType
from hami.core.errors import NotFoundError
from hami.core.objects import Node, Pod
from hami.core.token import Token
from hami.core.whose_call import Call, CallRefusal, whose_call
from hami.deviceplugin.token_release import token_of
from hami.kube.writer import KubeWriter


class Found(msgspec.Struct, frozen=True):
    """One pod, one call per container request, and the node as it was read."""

    node: Node
    calls: tuple[Call, ...]

    @property
    def pod(self) -> Pod:
        return self.calls[0].pod


class NobodysCall(msgspec.Struct, frozen=True):
    """No pod can be named. `owner` is the token's pod, if there is one; `pods` are all pods of the node."""

    message: str
    owner: Pod | None
    pods: tuple[Pod, ...]


async def find_pod(
    writer: KubeWriter, node_name: str, counts: Sequence[int], vendor: DeviceType
) -> Found | NobodysCall:
    """Whose call asks for `counts` devices, one number per container. Raises ApiError and TransportError."""
    node = await writer.get_node(node_name)
    token = token_of(node)
    owner = await _owner(writer, token)
    if owner is not None:
        calls = _calls(token, [owner], node_name, counts, vendor)
        if not isinstance(calls, CallRefusal):
            return Found(node, calls)
    pods = await writer.list_pods_on_node(node_name)
    calls = _calls(token, pods, node_name, counts, vendor)
    if isinstance(calls, CallRefusal):
        return NobodysCall(calls.message, owner, tuple(pods))
    return Found(node, calls)


async def _owner(writer: KubeWriter, token: Token | None) -> Pod | None:
    if token is None or not token.pod:
        return None
    try:
        return await writer.get_pod(token.namespace, token.pod)
    except NotFoundError:
        return None


def _calls(
    token: Token | None, pods: Sequence[Pod], node_name: str, counts: Sequence[int], vendor: DeviceType
) -> tuple[Call, ...] | CallRefusal:
    """One call per count. After the first, only the pod that it found may go on, with its segment consumed."""
    calls: list[Call] = []
    for count in counts:
        answer = whose_call(token, pods, node_name, count, vendor)
        if isinstance(answer, CallRefusal):
            return answer
        calls.append(answer)
        pods = [with_rest(answer, vendor)]
    return tuple(calls)


def with_rest(call: Call, vendor: DeviceType) -> Pod:
    """The pod as it will be when the call is committed."""
    pod = call.pod
    annotations = {**pod.annotations, vendor.to_allocate_key: call.rest_text}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))
