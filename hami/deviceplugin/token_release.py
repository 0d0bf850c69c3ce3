"""Gives the node's hand-off token back, if it is this pod's (contract 3.2, report B61, trap T-12)."""

from __future__ import annotations

import asyncio
from typing import Final

from hami.core.errors import ConflictError, DecodeError
from hami.core.keys import NODE_LOCK
from hami.core.objects import Node, Pod
from hami.core.token import Token, parse_token
from hami.kube.writer import KubeWriter

_ATTEMPTS: Final = 5
_FIRST_PAUSE_S: Final = 0.05


def token_of(node: Node) -> Token | None:
    """The token on `node`; None if there is none or it cannot be read (such a token names nobody)."""
    text = node.annotations.get(NODE_LOCK)
    if not text:
        return None
    try:
        return parse_token(text)
    except DecodeError:
        return None


async def release_token(writer: KubeWriter, node_name: str, pod: Pod, node: Node | None = None) -> bool:
    """Removes the token from the node if it names `pod`, or nobody (releases up to 2.4.1 wrote no owner).

    `node` is the node as read before, if it was. False if there was nothing of ours to remove. Raises ApiError and
    TransportError.
    """
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        current = node or await writer.get_node(node_name)
        token = token_of(current)
        if token is None or token.key not in ("", pod.key):
            return False
        try:
            await writer.patch_node_annotations(node_name, {NODE_LOCK: None}, current.metadata.resource_version)
        except ConflictError:
            if attempt == _ATTEMPTS:
                raise
            node = None
            await asyncio.sleep(pause_s)
            pause_s *= 2
        else:
            return True
    raise AssertionError("the last attempt returns or raises")
