"""Who holds a card: an allocation's text, a time as it is written, a reservation as filter makes it."""

from __future__ import annotations

import datetime

from hami.core.fit import Fit, evaluate
from hami.core.model import Policies, Use
from hami.core.objects import Pod
from hami.core.request import pod_request
from hami.placement.world import World
from tests.placement.fakes import REGISTRY, START_UNIX_S

ONE = "GPU-0,NVIDIA,1000,10:;"


def time_at(offset_s: float) -> str:
    return datetime.datetime.fromtimestamp(START_UNIX_S + offset_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reserve(world: World, pod: Pod, node: str = "n1") -> None:
    world.settle_now()
    view = world.view(node)
    assert view is not None
    request = pod_request(pod, REGISTRY, Policies())
    found = evaluate(view.state, request, REGISTRY)  # type: ignore[arg-type]
    assert isinstance(found, Fit)
    world.ledger.reserve(pod, node, found, world.clock.monotonic_s(), world.clock.unix_s())


def relist(world: World, *listed: str) -> None:
    for uid in world.ledger.uids():
        world.ledger.not_listed(uid, set(listed))


def used(world: World, node: str = "n1") -> dict[str, Use]:
    return dict(world.ledger.uses(node))
