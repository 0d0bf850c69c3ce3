"""The one write that binds: POST Binding, and what its failures mean (design 3, bind step 4; reports B67, B68)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from hami.core import keys
from hami.core.errors import ApiError, ConflictError, HamiError, NotFoundError, TransportError
from hami.core.objects import Pod
from hami.placement.bind_error import BindError, may_have_happened
from hami.placement.in_flight import BindCall
from hami.placement.node_token import HeldToken, TokenKeeper
from hami.placement.ports import ClusterWriter
from hami.placement.world import World

_TRIES: Final = 5
_LONGEST_PAUSE_S: Final = 5.0


class BindingWriter:
    """Posts Bindings until the outcome is certain. `pause_s` grows with each try that the server left unanswered."""

    def __init__(self, world: World, writer: ClusterWriter, tokens: TokenKeeper, pause_s: float) -> None:
        self._world = world
        self._writer = writer
        self._tokens = tokens
        self._pause_s = pause_s

    async def post(self, call: BindCall, version: str, annotations: Mapping[str, str], held: HeldToken | None) -> None:
        """Binds the pod. Returns when it is bound with these annotations; raises BindError when it will not be."""
        unsure = False
        last: HamiError | None = None
        for number in range(_TRIES):
            try:
                if held is not None and (held.pod_version != version or isinstance(last, ConflictError)):
                    held = await self._renewed(call, held, version, unsure=unsure)
                await self._writer.bind(
                    call.namespace,
                    call.name,
                    uid=call.uid,
                    resource_version=version,
                    node=call.node,
                    annotations=annotations,
                )
                return
            except NotFoundError as error:
                raise BindError(str(error), gone=True) from error
            except (ApiError, TransportError) as error:
                if not isinstance(error, ConflictError) and not may_have_happened(error):
                    raise BindError(str(error), keep_token=unsure) from error
                last = error
                if not isinstance(error, ConflictError):
                    unsure = True
                    await asyncio.sleep(_pause_s(error, self._pause_s * 2**number))
            pod = await self._read_back(call, last, number)
            if pod is None:
                continue
            if self._is_bound(call, pod, annotations):
                return
            version = pod.metadata.resource_version
        raise await self._given_up(call, last, unsure=unsure)

    async def _renewed(self, call: BindCall, held: HeldToken, version: str, *, unsure: bool) -> HeldToken:
        try:
            return await self._tokens.renew(call, held, version)
        except BindError as error:
            error.keep_token |= unsure
            raise

    async def _given_up(self, call: BindCall, last: HamiError | None, *, unsure: bool) -> BindError:
        """A Binding that nobody answered might still come true: make its resourceVersion stale if we may."""
        error = BindError(str(last), keep_token=unsure)
        if unsure:
            try:
                pod = await self._writer.get_pod(call.namespace, call.name)
            except (ApiError, TransportError):
                return error
            self._world.on_pod(pod)
            error.keep_token = bool(pod.spec.node_name) or not await self._tokens.fence(pod)
        return error

    async def _read_back(self, call: BindCall, why: HamiError | None, number: int) -> Pod | None:
        """The pod as it is now; None if that could not be read either."""
        try:
            pod = await self._writer.get_pod(call.namespace, call.name)
        except NotFoundError as error:
            raise BindError(str(error), gone=True) from error
        except (ApiError, TransportError):
            await asyncio.sleep(self._pause_s * 2**number)
            return None
        if pod.metadata.uid != call.uid:
            raise BindError(f"pod {call.key} was replaced: {why}", gone=True)
        return pod

    def _is_bound(self, call: BindCall, pod: Pod, annotations: Mapping[str, str]) -> bool:
        node = pod.spec.node_name
        if node:
            self._world.on_pod(pod)
            ours = all(pod.annotations.get(key) == annotations[key] for key in annotations if _is_record(key))
            if node == call.node and ours:
                return True
            here = node == call.node
            raise BindError(f"pod {call.key} is bound to node {node} already, not by this call", keep_token=here)
        if pod.finished:
            # kube-apiserver would bind it all the same.
            raise BindError(f"pod {call.key} has ended ({pod.status.phase})", gone=True)
        if pod.metadata.deletion_timestamp is not None:
            raise BindError(f"pod {call.key} is being deleted", gone=True)
        return False


def _is_record(key: str) -> bool:
    """Annotations that stay as the Binding wrote them: the plugin changes the work list and the phase."""
    return key in (keys.VGPU_NODE, keys.BIND_TIME) or key.endswith("-allocated")


def _pause_s(error: HamiError, pause_s: float) -> float:
    """What the server asks for, within reason: the node's token waits with us."""
    return max(pause_s, min(error.retry_after_s, _LONGEST_PAUSE_S)) if isinstance(error, ApiError) else pause_s
