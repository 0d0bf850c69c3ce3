"""A node in mode mig for tests: the scheduler's part, and looks at what exists on the cards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from hami.core.codec import MigAllocation, decode_mig_allocations, decode_register, encode_mig_allocations
from hami.core.keys import MIG_ALLOCATIONS
from hami.core.model import MigPlacement
from hami.core.objects import Pod
from hami.deviceplugin.plugin import Plugin
from hami.kube import paths
from hami.nvml.probe import CardFacts
from hami.nvml.simulated import SimulatedProbe
from hami.vendors.nvidia.names import MODE_MIG, REGISTER_KEY
from tests.deviceplugin.bench import NODE, A, Bench
from tests.nvml.mig_cards import MIG_CARDS

SIZES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "7g.40gb": 8, "1g.10gb": 2}
MEMORY_MIB = {"1g.5gb": 4864, "2g.10gb": 9984, "3g.20gb": 20096, "7g.40gb": 40448, "1g.10gb": 9984}
Slice = tuple[str, str, int]
"""Card, profile, first memory slice."""


def reservation(card: str, profile: str, start: int, container: int = 0, device: int = 0) -> MigAllocation:
    return MigAllocation(container, device, card, profile, MigPlacement(start, SIZES[profile]))


class MigNode:
    """`node` with two cards that can do MIG."""

    def __init__(self, node: Bench, profile: str = MIG_CARDS) -> None:
        self.node = node
        self._profile = profile
        self.say("")

    @classmethod
    def looking_at(cls, node: Bench) -> Self:
        """A look at a node whose cards are what they are."""
        return cls(node, node.profile.read_text())

    def say(self, faults: str) -> None:
        """What the driver does from now on: a profile's `faults`, as the inside of a YAML mapping."""
        self.node.profile.write_text(self._profile + (f"faults: {{{faults}}}\n" if faults else ""))

    async def start(self, **changes: Any) -> Plugin:
        return await self.node.start_plugin(**{"mode": MODE_MIG, "mig_interval_s": 0.05, **changes})

    def wait_for_places(self, limit_s: float) -> None:
        """From now on so long for a place that is not free; a call's own time stays."""
        allocator = self.node.plugin._allocator._mig
        assert allocator is not None
        allocator._settings = msgspec.structs.replace(allocator._settings, allocate_timeout_s=2 * limit_s)

    async def pod(self, name: str, *containers: Sequence[Slice], token: bool = True) -> Pod:
        """A pod with MIG slices in each container, as the scheduler hands it over."""
        work = ""
        slices = []
        for at, wanted in enumerate(containers):
            for position, (card, profile, start) in enumerate(wanted):
                work += f"{card},NVIDIA,{MEMORY_MIB[profile]},15:"
                slices.append(reservation(card, profile, start, at, position))
            work += ";"
        names = tuple(f"c{at}" for at in range(len(containers)))
        return await self.node.bound_pod(
            name, work, containers=names, token=token, slices=encode_mig_allocations(slices)
        )

    async def reservations(self, name: str) -> tuple[MigAllocation, ...]:
        return decode_mig_allocations((await self.node.pod(name)).annotations[MIG_ALLOCATIONS], name)

    async def finish(self, name: str) -> None:
        """The pod's containers end; kubelet says so."""
        await self.node.client.request(
            "PATCH",
            paths.pod("default", name) + "/status",
            b'{"status": {"phase": "Succeeded"}}',
            "application/merge-patch+json",
        )

    async def delete(self, name: str) -> None:
        await self.node.client.request("DELETE", paths.pod("default", name), b'{"gracePeriodSeconds": 0}')

    async def cards(self) -> tuple[CardFacts, ...]:
        """What the driver has, asked by somebody else."""
        probe = SimulatedProbe(self.node.profile, NODE, self.node.kubelet.folder / "hami")
        return (await probe.cards()).cards

    async def card(self, uuid: str = A) -> CardFacts:
        return next(each for each in await self.cards() if each.uuid == uuid)

    async def places(self, uuid: str = A) -> list[tuple[int, int]]:
        """Slices and start of each whole instance."""
        return [(each.slices, each.placement.start) for each in (await self.card(uuid)).mig_instances if each.compute]

    async def until_places(self, expected: list[tuple[int, int]], uuid: str = A) -> None:
        async with asyncio.timeout(60):
            while await self.places(uuid) != expected:  # noqa: ASYNC110 - the driver's state is not ours to signal
                await asyncio.sleep(0.01)

    async def until_registered_starts(self, expected: set[int]) -> None:
        """The memory slices at which instances of card A may begin, as the scheduler reads it."""
        async with asyncio.timeout(60):
            while await self._registered_starts() != expected:  # noqa: ASYNC110 - another process's annotation
                await asyncio.sleep(0.01)

    async def _registered_starts(self) -> set[int]:
        cards = decode_register((await self.node.node()).annotations[REGISTER_KEY], "NVIDIA", "test")
        return {
            place.start for card in cards if card.id == A for each in card.mig_profiles for place in each.placements
        }
