"""Finds the pod of a kubelet call by live reads (design 3, "Whose Allocate is it").

Asked before every refusal, and wherever the node's view (node_view.py) cannot say yes beyond doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from hami.core.device_type import DeviceType
from hami.core.errors import NotFoundError
from hami.core.objects import Pod
from hami.core.token import Token, token_of
from hami.core.whose_call import CallRefusal, ahead_of, whose_calls
from hami.deviceplugin.node_view import Found
from hami.kube.writer import KubeWriter

_END_SHOWS_S: Final = 2.0
"""kubelet writes a rejected pod's status at once, beside its work."""
_LOOK_AGAIN_S: Final = 0.1


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


async def first_in_line(
    writer: KubeWriter, found: Found, known: Sequence[Pod], counts: Sequence[int], vendor: DeviceType
) -> Found:
    """`found`, or what the pod ahead of it waits for (core.whose_call.ahead_of): kubelet asks for that one first.

    Unless kubelet has rejected it: that shows a moment after the call that failed, so it is looked for until it does,
    or until it is too late for that. `known` are the node's pods as a watch shows them. Raises ApiError and
    TransportError.
    """
    node = found.node.name
    deadline_s = asyncio.get_running_loop().time() + _END_SHOWS_S
    ahead = ahead_of(found.pod, known, node, counts[0], vendor)
    while ahead is not None:
        live = await _pod(writer, ahead.metadata.namespace, ahead.metadata.name)
        others = [pod for pod in known if pod.metadata.uid != ahead.metadata.uid]
        known = [*others, live] if live is not None and live.metadata.uid == ahead.metadata.uid else others
        first = ahead_of(found.pod, known, node, counts[0], vendor)
        if first is not None and first.metadata.uid == ahead.metadata.uid:
            if asyncio.get_running_loop().time() >= deadline_s:
                calls = whose_calls(None, [first], node, counts, vendor)
                return found if isinstance(calls, CallRefusal) else Found(found.node, calls)
            await asyncio.sleep(_LOOK_AGAIN_S)
        ahead = first
    return found


async def _owner(writer: KubeWriter, token: Token | None) -> Pod | None:
    if token is None or not token.pod:
        return None
    return await _pod(writer, token.namespace, token.pod)


async def _pod(writer: KubeWriter, namespace: str, name: str) -> Pod | None:
    try:
        return await writer.get_pod(namespace, name)
    except NotFoundError:
        return None
