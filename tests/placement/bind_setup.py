"""One scheduler over an API with compare-and-set, for tests of the bind protocol."""

from __future__ import annotations

import datetime

from hami.core import keys
from hami.core.device_type import Registry
from hami.core.model import Policies
from hami.core.objects import Pod
from hami.placement.bind import Binder, BindSettings
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from tests.placement.fake_api import FakeApi, FakeEvents
from tests.placement.fakes import REGISTRY, FakeClock, make_node


class Setup:
    """One scheduler over one API."""

    def __init__(self, *, wait_s: float = 60.0, expiry_s: float = 300.0, registry: Registry = REGISTRY) -> None:
        self.clock = FakeClock()
        self.clock.real = True
        self.world = World(registry, Policies(), self.clock)
        self.api = FakeApi(self.world)
        self.events = FakeEvents()
        self.engine = Engine(self.world)
        settings = BindSettings("sched-0", wait_s=wait_s, token_expiry_s=expiry_s, retry_pause_s=0.001)
        self.binder = Binder(self.world, self.api, self.events, self.clock, settings)
        self.api.put_node(make_node("n1"))
        self.api.put_node(make_node("n2"))
        self.names = NodeNames.of(["n1", "n2"])

    def reserve(self, pod: Pod, node: str = "n1") -> Pod:
        pod = self.api.put_pod(pod)
        assert self.engine.filter(pod, NodeNames.of([node])).node == node
        return pod

    async def bind(self, name: str = "p", node: str = "n1", uid: str = "") -> str:
        return await self.binder.bind("default", name, uid or f"uid-{name}", node)

    def lock(self, owner: str, *, age_s: float = 0.0, node: str = "n1") -> str:
        stamp = datetime.datetime.fromtimestamp(self.clock.unix_s() - age_s, datetime.UTC)
        text = f"{stamp:%Y-%m-%dT%H:%M:%SZ}" + (f",default,{owner}" if owner else "")
        self.api.annotate_node(node, lock=text)
        return text

    def strange_epoch(self) -> None:
        """As if another scheduler had written both nodes before."""
        for name in ("n1", "n2"):
            self.api._merge_node(name, {keys.BIND_EPOCH: "sched-1/7"})
        self.api.calls.clear()

    def own_epoch(self) -> None:
        """As if this scheduler had written both nodes before."""
        for name in ("n1", "n2"):
            self.api._merge_node(name, {keys.BIND_EPOCH: self.binder._tokens.epoch})
        self.api.calls.clear()

    def assert_free(self, node: str = "n1") -> None:
        self.world.settle_now()
        assert dict(self.world.ledger.uses(node)) == {}
