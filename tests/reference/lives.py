"""Random lives: pods come, are filtered again, bound, finished and deleted; nodes change; lists are read again.

After every step both sides must have the same answer to the next question. This is what a scheduler sees in a day.
Where the oracle is asked now and then only, our answers are taken as given in between, and what is given must fit.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from hami.core.objects import node_decoder
from tests.bench.oracle import differences
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.reference.model import Decision, Object
from tests.reference.subject import Subject, typed_pod, typed_quotas, without_numbers
from tests.reference.totals import over_allocated
from tests.reference.world_nodes import Size
from tests.reference.world_pods import random_pod
from tests.reference.worlds import World, build, holding

Step = Callable[[], Awaitable[None]]

WEIGHTS = {"ask": 8, "ask again": 2, "bind": 5, "end": 2, "delete": 2, "change node": 1, "read lists again": 1}
"""How often each kind of step comes."""


class Life:
    """One world and our placement, going through the same events."""

    def __init__(self, seed: int, size: Size, *, oracle_every: int = 1) -> None:
        """`oracle_every`: every so many steps the oracle is asked about the next decision."""
        self._rng = Random(seed)
        self._oracle_every = oracle_every
        self._oracle_due = True
        self._step = 0
        self.world: World = build(self._rng, size)
        self._waiting: dict[str, tuple[Object, Decision]] = {}
        self._version = 100
        self._number = 0
        self.differences: list[str] = []
        self._over_before: set[str] = set()
        self.subject: Subject

    async def start(self) -> None:
        """Our side takes the world's objects."""
        self.subject = await Subject.of(self.world)
        self.subject.placement.quotas.replace(typed_quotas(self.world.quotas))
        # Lists of old releases count init containers fully, which can be more than was decided.
        self._over_before = set(over_allocated(self.world))

    async def run(self, steps: int) -> None:
        """Goes on until `steps` are done or something differs."""
        await self.start()
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        for self._step in range(steps):
            self._oracle_due |= self._step % self._oracle_every == 0
            await self._take(self._rng.choices(names, weights)[0])
            if self.differences:
                return

    async def step(self, name: str, seed: int) -> None:
        """One step (see WEIGHTS) whose choices come from `seed`, for drivers that choose the steps themselves."""
        self._rng = Random(seed)
        self._oracle_due = True
        await self._take(name)

    async def _take(self, name: str) -> None:
        steps: dict[str, Step] = {
            "ask": self._ask,
            "ask again": self._ask_again,
            "bind": self._bind,
            "end": self._end,
            "delete": self._delete,
            "change node": self._change_node,
            "read lists again": self._read_lists_again,
        }
        await steps[name]()

    async def _ask(self) -> None:
        self._number += 1
        self._filter(random_pod(self._rng, f"life-{self._number}", []))

    async def _ask_again(self) -> None:
        if self._waiting:
            self._filter(self._waiting[self._rng.choice(sorted(self._waiting))][0])

    def _filter(self, pod: Object) -> None:
        names = self._rng.sample(self.world.names, self._rng.randint(1, len(self.world.names)))
        names += ["unknown-node"] if self._rng.random() < 0.1 else []
        uid = pod["metadata"]["uid"]
        ours = self.subject.decide(pod, names)
        if self._oracle_due:
            self._oracle_due = False
            found = differences(without_numbers(ours), self.world.decide(pod, names))
            if uid in self._waiting and ours.events == []:
                found = [text for text in found if not text.startswith("events")]
            self.differences = [f"step {self._step}, {pod['metadata']['name']}: {text}" for text in found]
            over = set(over_allocated(self.world)) - self._over_before
            self.differences += [f"step {self._step}: {card} is over-allocated" for card in sorted(over)]
        self._waiting.pop(uid, None)
        self.world.drop(uid)
        if ours.node is not None:
            self._waiting[uid] = (pod, ours)
            self.world.hold(pod, ours, bound=False)

    async def _bind(self) -> None:
        if self._waiting:
            pod, decision = self._waiting.pop(self._rng.choice(sorted(self._waiting)))
            self._show(holding(pod, decision))

    async def _end(self) -> None:
        if bound := self._bound():
            pod = self._copy(self._rng.choice(bound))
            pod["status"]["phase"] = self._rng.choice(("Succeeded", "Failed"))
            self._show(pod)

    async def _delete(self) -> None:
        if bound := self._bound():
            meta = self._rng.choice(bound)["metadata"]
            self.world.drop(meta["uid"])
            self.subject.placement.on_pod_deleted(meta["namespace"], meta["name"], meta["uid"])

    async def _change_node(self) -> None:
        """Cordons a card, takes a cordon back, or loses and regains the register annotation."""
        place = self._rng.randrange(len(self.world.nodes))
        node = self._copy(self.world.nodes[place])
        notes = node["metadata"]["annotations"]
        register = "hami.io/node-nvidia-register"
        if notes.pop("hami.io/device-cordon", None) is None and "[{" in notes.get(register, ""):
            notes["hami.io/device-cordon"] = self._rng.choice(json.loads(notes[register]))["id"]
        elif "kept" in notes:
            notes[register] = notes.pop("kept")
        elif register in notes:
            notes["kept"] = notes.pop(register)
        node["metadata"]["resourceVersion"] = self._next_version()
        self.world.nodes[place] = node
        self.subject.placement.on_node(node_decoder.decode(msgspec.json.encode(node)))

    async def _read_lists_again(self) -> None:
        nodes = [node_decoder.decode(msgspec.json.encode(node)) for node in self.world.nodes]
        await nodes_replaced(self.subject.placement, nodes)
        waiting = [self._waiting[uid][0] for uid in sorted(self._waiting)]
        bound = [pod for pod in self.world.pods if pod["metadata"]["uid"] not in self._waiting]
        await pods_replaced(self.subject.placement, [typed_pod(pod) for pod in [*bound, *waiting]])

    def _bound(self) -> list[Object]:
        return [pod for pod in self.world.pods if pod["spec"].get("nodeName")]

    def _show(self, pod: Object) -> None:
        pod["metadata"]["resourceVersion"] = self._next_version()
        self.world.show(pod)
        self.subject.placement.on_pod(typed_pod(pod))

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    @staticmethod
    def _copy(obj: Object) -> Object:
        copied: Object = json.loads(json.dumps(obj))
        return copied
