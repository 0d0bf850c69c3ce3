"""Owners of tokens that are in the way of a bind: may the token be taken (design 3; docs/adr/0004)?

`core.token` judges from the owner's state; this module reads the owner, and knows which tokens were left behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from hami.core import keys
from hami.core.errors import ApiError, NotFoundError, TransportError
from hami.core.objects import Pod
from hami.core.token import BindEpoch, Token, TokenAction, judge
from hami.placement.bind_error import BindError
from hami.placement.in_flight import BindCall
from hami.placement.ports import Clock, ClusterWriter
from hami.placement.world import World

LOOK_AGAIN_S: Final = 0.5
"""Longest wait without a look at the owner, should an event be lost or the token expire meanwhile."""
_MOST_MET: Final = 4096


class TokenOwners:
    """What is known of them in one term. `fence` makes an owner's late Binding fail; it says whether it could."""

    def __init__(
        self,
        world: World,
        writer: ClusterWriter,
        clock: Clock,
        expiry_s: float,
        fence: Callable[[Pod], Awaitable[bool]],
    ) -> None:
        self._world = world
        self._writer = writer
        self._clock = clock
        self._expiry_s = expiry_s
        self._fence = fence
        self._read: dict[str, tuple[float, Pod | None]] = {}
        self._met: dict[str, str] = {}
        """Owner uid -> resourceVersion when its token was first in the way, for tokens beside which nothing stands."""

    def forget(self) -> None:
        """What was seen of owners in an earlier term says nothing about Bindings prepared since."""
        self._met.clear()
        self._read.clear()

    async def let_go(self, token: Token, written: BindEpoch | None, call: BindCall) -> bool:
        """Whether the call may take the token: it is its own pod's, or nothing its owner does can need it any more.

        `written`: what was written together with the token, where that is known. Raises BindError where the owner
        cannot be read.
        """
        if token.namespace == call.namespace and token.pod == call.name:
            return True
        owner = self._world.owner_on_record(token.namespace, token.pod)
        if owner is None and token.pod:
            owner = await self._read_owner(token, call.node)
        verdict = judge(token, owner, call.node, self._clock.unix_s(), self._expiry_s)
        if verdict.action is TokenAction.FENCE:
            assert owner is not None
            self._read.pop(token.key, None)
            # Upstream's Bindings ask for no version: no fence stops them, and upstream itself goes by the age alone.
            return await self._fence(owner) or written is None or self._left_behind(owner, written, call)
        if verdict.action is TokenAction.KEEP and owner is not None and not owner.spec.node_name:
            return self._left_behind(owner, written, call)
        return verdict.action is TokenAction.FREE

    def _left_behind(self, owner: Pod, written: BindEpoch | None, call: BindCall) -> bool:
        """Whether the token of a live unbound owner is a left-over that no Binding can follow any more.

        A scheduler that was killed, or a Binding that nobody answered, leaves such tokens. Beside them stands which
        version of the owner the Binding asks for: once the owner was written after that, it fails. Pods whose calls
        wait for each other's tokens would never be written: then the owner's call is given up once, and kube-scheduler
        writes the pod's condition (docs/adr/0004).
        """
        uid, version = owner.metadata.uid, owner.metadata.resource_version
        if written is not None and written.is_past(owner):
            return True
        if written is None and owner.annotations.get(keys.VGPU_NODE) == call.node:
            # An allocation on this node that was written before its Binding: upstream's scheduler is at work.
            return False
        running = self._world.in_flight.get(uid)
        if running is not None and running.node == call.node:
            self._met.pop(uid, None)
            return False
        if uid not in self._met:
            if len(self._met) >= _MOST_MET:
                self._met.pop(next(iter(self._met)))
            self._met[uid] = version
            if running is not None:
                why = f"its hand-off token on node {call.node} was left behind; it has to be scheduled again"
                self._world.in_flight.call_off(uid, why)
        return written is None and self._met[uid] != version

    async def _read_owner(self, token: Token, node: str) -> Pod | None:
        now_s = self._clock.monotonic_s()
        known = self._read.get(token.key)
        if known is not None and now_s - known[0] < LOOK_AGAIN_S:
            return known[1]
        owner: Pod | None
        try:
            owner = await self._writer.get_pod(token.namespace, token.pod)
        except NotFoundError:
            owner = None
        except (ApiError, TransportError) as error:
            raise BindError(f"cannot read pod {token.key}, which holds node {node}: {error}") from error
        self._read = {key: value for key, value in self._read.items() if now_s - value[0] < LOOK_AGAIN_S}
        self._read[token.key] = (now_s, owner)
        return owner
