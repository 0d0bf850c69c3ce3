"""A pod and a cluster that differ a little from what they are: which node would then take the pod."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.core.fit import Fit, evaluate
from hami.core.model import NodeState, PodRequest
from hami.core.objects import Pod
from hami.core.quota import Room
from hami.placement.claims import Claim
from hami.placement.node_after import node_after
from hami.placement.pod_edits import with_amount, without_annotation
from hami.placement.world import World

ShapeOf = Callable[[Pod], PodRequest | None]
Find = Callable[[PodRequest, Room | None], str]


class Amount(msgspec.Struct, frozen=True):
    """A number of the pod that may be lowered: `amount` of `resource` in container `index`, not below `lowest`."""

    index: int
    resource: str
    amount: int
    lowest: int
    instead_of: str = ""
    """What the pod says instead of a number."""


class Scene(msgspec.Struct, frozen=True):
    """What is different: the pod, cards (node, id) taken back into use, pods (uids) gone, the quota out of the way."""

    pod: Pod
    uncordoned: frozenset[tuple[str, str]] = frozenset()
    gone: frozenset[str] = frozenset()
    quota_raised: bool = False

    def lowered(self, amount: Amount, value: int) -> Scene:
        return msgspec.structs.replace(self, pod=with_amount(self.pod, amount.index, amount.resource, value))

    def without(self, annotation: str) -> Scene:
        return msgspec.structs.replace(self, pod=without_annotation(self.pod, annotation))


class Stage:
    """Plays scenes against one world, for pods of one namespace."""

    def __init__(self, world: World, shape_of: ShapeOf, find: Find, namespace: str) -> None:
        self._world = world
        self._shape_of = shape_of
        self._find = find
        self._namespace = namespace

    def place(self, scene: Scene) -> str:
        """The node that would take the pod; empty if none would."""
        shape = self._shape_of(scene.pod)
        if shape is None or not shape.asks_for_devices:
            return ""
        claims = self.gone(scene)
        room = None if scene.quota_raised else self._world.quotas.room(self._namespace, *claims)
        found = self._find(shape, room)
        touched = {name for name, _ in scene.uncordoned} | {claim.node for claim in claims}
        return found or next((name for name in sorted(touched) if self._fits(name, scene, shape, room)), "")

    def takes(self, scene: Scene, node: str) -> bool:
        """Whether a node would take the pod."""
        shape = self._shape_of(scene.pod)
        if shape is None or not shape.asks_for_devices:
            return False
        room = None if scene.quota_raised else self._world.quotas.room(self._namespace, *self.gone(scene))
        return self._fits(node, scene, shape, room)

    def fit(self, scene: Scene, node: str) -> Fit | None:
        """What the pod would get on a node if no quota held."""
        shape, state = self._shape_of(scene.pod), self._state(node, scene)
        found = evaluate(state, shape, self._world.registry) if shape is not None and state is not None else None
        return found if isinstance(found, Fit) else None

    def gone(self, scene: Scene) -> list[Claim]:
        """What the pods held that are gone."""
        return [claim for uid in sorted(scene.gone) if (claim := self._world.ledger.get(uid)) is not None]

    def _fits(self, node: str, scene: Scene, shape: PodRequest, room: Room | None) -> bool:
        state = self._state(node, scene)
        return state is not None and isinstance(evaluate(state, shape, self._world.registry, room), Fit)

    def _state(self, node: str, scene: Scene) -> NodeState | None:
        state = node_after(self._world, node, scene.gone)
        if state is None:
            return None
        freed = {card for name, card in scene.uncordoned if name == node}
        return msgspec.structs.replace(state, cordoned=state.cordoned - freed)
