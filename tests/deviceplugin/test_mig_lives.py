"""Random lives of a MIG node against an oracle: pods come and go, processes stay behind, the plugin is killed anywhere.

Whatever happens: a served pod's instance is at its place and nobody else's, nothing in use is taken away, and when all
is quiet everything has been given back.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from hami.core.codec import encode_mig_allocations, encode_shares
from hami.core.errors import AllocateError, NvmlError
from hami.core.keys import BIND_PHASE, MIG_ALLOCATIONS, PHASE_ALLOCATING
from hami.core.model import DeviceShare, MigPlacement
from hami.core.objects import Node, Pod, pod_decoder
from hami.core.whose_call import Call
from hami.deviceplugin.board import Board
from hami.deviceplugin.cdi_files import CdiFiles
from hami.deviceplugin.mig_allocate import MigAllocator
from hami.deviceplugin.mig_manager import MigManager
from hami.deviceplugin.mig_setup import MigSetup
from hami.deviceplugin.node_view import Found
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts, Cards, MigInstanceFacts, ProcessFacts
from hami.nvml.simulated import SimulatedProbe
from hami.nvml.simulated_mig import SimulatedGeometry
from hami.vendors.nvidia.names import ALLOCATED_KEY, MODE_MIG
from tests.deviceplugin.bench import NODE, A, B, RecordedEvents
from tests.deviceplugin.mig_node import SIZES, reservation
from tests.nvml.mig_cards import MIG_CARDS

PLACES = [
    (card, profile, start)
    for card in (A, B)
    for profile, starts in {"1g.5gb": range(7), "2g.10gb": (0, 2, 4), "3g.20gb": (0, 4), "7g.40gb": (0,)}.items()
    for start in starts
]


class KilledError(BaseException):
    """The process ends here, as by SIGKILL: nothing of it runs any more."""


class Hardware:
    """Implements the part of `DeviceProbe` that MIG needs. Outlives every plugin; kills one after so many steps."""

    def __init__(self, cards: Sequence[CardFacts]) -> None:
        self.geometry = SimulatedGeometry()
        self.in_use: set[str] = set()
        self.steps_left: int | None = None
        self._cards = {card.uuid: card for card in cards}

    def _step(self) -> None:
        if self.steps_left == 0:
            raise KilledError
        if self.steps_left is not None:
            self.steps_left -= 1

    def now(self) -> dict[str, CardFacts]:
        return {uuid: self.geometry.seen(card) for uuid, card in self._cards.items()}

    async def cards(self) -> Cards:
        self._step()
        return Cards(tuple(self.now().values()))

    async def processes(self) -> tuple[ProcessFacts, ...]:
        self._step()
        return tuple(ProcessFacts(uuid, 1, 0) for uuid in sorted(self.in_use))

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        self._step()
        self.geometry.set_mode(self._cards[uuid], enabled=enabled, in_use=self.in_use)

    async def create_mig(self, uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
        self._step()
        instance = self.geometry.create_gpu_instance(self._cards[uuid], profile, placement)
        self._step()
        made = self.geometry.create_compute_instance(self._cards[uuid], instance)
        self._step()
        return made

    async def destroy_mig(self, uuid: str, instance: int) -> None:
        self._step()
        self.geometry.destroy_compute_instances(self._cards[uuid], instance, in_use=self.in_use)
        self._step()
        self.geometry.destroy_gpu_instance(self._cards[uuid], instance)


class Cluster:
    """The pods that the API server has. Implements what is asked of `KubeWriter`."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        return list(self.pods.values())

    def bind(self, name: str, wanted: tuple[str, str, int]) -> Pod:
        card, _, _ = wanted
        pod = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": name,
                "annotations": {
                    BIND_PHASE: PHASE_ALLOCATING,
                    MIG_ALLOCATIONS: encode_mig_allocations([reservation(*wanted)]),
                    ALLOCATED_KEY: encode_shares(((DeviceShare(card, "NVIDIA", 1, 1),),)),
                },
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "main"}]},
            "status": {"phase": "Pending"},
        }
        self.pods[name] = pod_decoder.decode(msgspec.json.encode(pod))
        return self.pods[name]

    def write(self, name: str, annotations: dict[str, str]) -> None:
        pod = self.pods[name]
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.annotations, **annotations})
        self.pods[name] = msgspec.structs.replace(pod, metadata=meta)


class Life:
    """One node: hardware and cluster stay, plugins come and go."""

    def __init__(self, folder: Path, hardware: Hardware) -> None:
        self.hardware = hardware
        self.cluster = Cluster()
        self.served: dict[str, str] = {}
        """Pod -> id of its instance: the containers that run."""
        self.wanted: dict[str, tuple[str, str, int]] = {}
        self.ghosts: dict[str, tuple[str, MigPlacement]] = {}
        """Instances that processes of gone pods use."""
        self._settings = PluginSettings(NODE, kubelet_dir=folder, mode=MODE_MIG, allocate_timeout_s=0.0)
        self._made = 0

    def plugin(self) -> tuple[MigManager, MigAllocator]:
        settings, writer, hardware = self._settings, self.cluster, self.hardware
        board, events = Board(settings), RecordedEvents()

        async def refresh() -> None:
            return

        manager = MigManager(settings, board, hardware, writer, events, refresh)  # type: ignore[arg-type]
        setup = MigSetup(settings, CdiFiles(settings))
        return manager, MigAllocator(settings, hardware, writer, manager, setup)  # type: ignore[arg-type]

    async def look(self, dies_after: int | None = None) -> None:
        await self._until_killed(self.plugin()[0].look(), dies_after)

    async def bind(self, place: tuple[str, str, int], dies_after: int | None) -> None:
        """The scheduler places a pod where no live pod holds anything; kubelet asks, maybe again after a kill."""
        card, profile, start = place
        placement = MigPlacement(start, SIZES[profile])
        for other_card, other_profile, other_start in self.wanted.values():
            if other_card == card and placement.overlaps(MigPlacement(other_start, SIZES[other_profile])):
                return
        self._made += 1
        name = f"p{self._made}"
        self.wanted[name] = place
        self.cluster.bind(name, place)
        await self.allocate(name, dies_after)

    async def allocate(self, name: str, dies_after: int | None = None) -> None:
        pod = self.cluster.pods[name]
        card, _, start = self.wanted[name]
        share = DeviceShare(card, "NVIDIA", 1, 1)
        found = Found(Node(), (Call(pod, 0, (share,), ";"),))
        _, allocator = self.plugin()
        try:
            prepared = await self._until_killed(allocator.prepare(found), dies_after)
        except (AllocateError, NvmlError):
            assert any(
                ghost_card == card and ghost.overlaps(MigPlacement(start, SIZES[self.wanted[name][1]]))
                for ghost_card, ghost in self.ghosts.values()
            ), "refused though nobody is in the way"
            return
        if prepared is not None:
            self.cluster.write(name, prepared.annotations)
            self.served[name] = dict(prepared.edits[0].envs)["NVIDIA_VISIBLE_DEVICES"]

    def end(self, name: str, *, leaves_a_process: bool) -> None:
        uuid = self.served.pop(name, "")
        card, profile, start = self.wanted.pop(name)
        del self.cluster.pods[name]
        if uuid and leaves_a_process:
            self.hardware.in_use.add(uuid)
            self.ghosts[uuid] = (card, MigPlacement(start, SIZES[profile]))

    def end_ghosts(self) -> None:
        self.hardware.in_use.clear()
        self.ghosts.clear()

    async def _until_killed(self, coroutine: Any, dies_after: int | None) -> Any:
        self.hardware.steps_left = dies_after
        try:
            return await coroutine
        except KilledError:
            return None
        finally:
            self.hardware.steps_left = None

    def check(self) -> None:
        """Each served pod has its instance, at its place; each process its own."""
        cards = self.hardware.now()
        where = {
            compute.uuid: (card.uuid, instance.placement)
            for card in cards.values()
            for instance in card.mig_instances
            for compute in instance.compute
        }
        for name, uuid in self.served.items():
            card, profile, start = self.wanted[name]
            assert where.get(uuid) == (card, MigPlacement(start, SIZES[profile])), f"instance of {name}"
        assert len(set(self.served.values())) == len(self.served)
        for uuid, place in self.ghosts.items():
            assert where.get(uuid) == place, "an instance in use was taken away"
            assert uuid not in self.served.values(), "an instance in use was given to a pod"
        for each in cards.values():
            for at, one in enumerate(each.mig_instances):
                assert not any(one.placement.overlaps(other.placement) for other in each.mig_instances[at + 1 :])


KILL = st.one_of(st.none(), st.integers(min_value=0, max_value=14))
STEP = st.one_of(
    st.tuples(st.just("bind"), st.sampled_from(PLACES), KILL),
    st.tuples(st.just("again"), st.integers(min_value=0, max_value=7), KILL),
    st.tuples(st.just("end"), st.integers(min_value=0, max_value=7), st.booleans()),
    st.tuples(st.just("ghosts"), st.none(), st.none()),
    st.tuples(st.just("look"), st.none(), KILL),
)


@pytest.fixture(scope="module")
def cards() -> tuple[CardFacts, ...]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(MIG_CARDS)
        file.flush()
        return asyncio.run(SimulatedProbe(Path(file.name), NODE).cards()).cards


@given(steps=st.lists(STEP, max_size=25))
@settings(max_examples=120, deadline=None)
def test_lives(cards: tuple[CardFacts, ...], steps: list[tuple[str, Any, Any]]) -> None:
    asyncio.run(live(cards, steps))


async def live(cards: tuple[CardFacts, ...], steps: list[tuple[str, Any, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), Hardware(cards))
        await life.look()
        for what, which, how in steps:
            names = sorted(life.wanted)
            name = names[which % len(names)] if names and what in ("again", "end") else ""
            if what == "bind":
                await life.bind(which, how)
            elif what == "again" and name and name not in life.served:
                await life.allocate(name, how)
            elif what == "end" and name:
                life.end(name, leaves_a_process=how)
            elif what == "ghosts":
                life.end_ghosts()
            elif what == "look":
                await life.look(how)
            life.check()
        life.end_ghosts()
        for name in sorted(life.wanted.keys() - life.served.keys()):
            await life.allocate(name)
        life.check()
        assert life.served.keys() == life.wanted.keys(), "with nobody in the way every pod is served"
        for name in sorted(life.wanted):
            life.end(name, leaves_a_process=False)
        await life.look()
        assert [card.mig_instances for card in life.hardware.now().values()] == [()] * 3, "everything is given back"
