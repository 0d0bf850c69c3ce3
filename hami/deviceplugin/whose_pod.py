"""Finds the pod of a kubelet call by live reads (design 3, "Whose Allocate is it").

Asked before every refusal, and wherever the node's view (node_view.py) cannot say yes beyond doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami.core.device_type import DeviceType
from hami.core.errors import NotFoundError
from hami.core.objects import Pod
from hami.core.token import Token, token_of
from hami.core.whose_call import CallRefusal, whose_calls
from hami.deviceplugin.node_view import Found
from hami.kube.writer import KubeWriter


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
        calls = whose_calls(token, [owner], node_name, counts, vendor)
        if not isinstance(calls, CallRefusal):
            return Found(node, calls)
    pods = await writer.list_pods_on_node(node_name)
    calls = whose_calls(token, pods, node_name, counts, vendor)
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
