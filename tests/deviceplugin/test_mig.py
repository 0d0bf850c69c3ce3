"""Mode mig: instances made at Allocate, given back when the pod is gone, refused where their place is taken."""

from __future__ import annotations

import asyncio

import pytest

from hami.core.codec import decode_register, encode_mig_allocations
from hami.core.keys import MIG_ALLOCATIONS, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.nvml.simulated_mig import mig_uuid
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import MigAllowlistEntry, NvidiaConfig
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.bench import A, B
from tests.deviceplugin.calls import refused
from tests.deviceplugin.mig_node import MigNode, reservation

ONES = NvidiaConfig(
    device_split_count=3, mig_profile_allowlist=(MigAllowlistEntry(("A100",), ("1g.5gb", "2g.10gb", "3g.20gb")),)
)


async def test_cards_become_mig_cards_and_are_registered_with_their_geometry(mig: MigNode) -> None:
    await mig.start(nvidia=ONES)
    await mig.node.until(lambda: len(mig.node.kubelet.devices) == 14, "seven ids of each of two cards (T-33)")
    assert [card.mig_enabled for card in await mig.cards()] == [True, True, False]
    cards = decode_register((await mig.node.node()).annotations[REGISTER_KEY], "NVIDIA", "test")
    assert [(card.id, card.mode, card.slots, card.memory_mib, card.core_percent) for card in cards] == [
        (A, "mig", 7, 40960, 100),
        (B, "mig", 7, 40960, 100),
    ]
    profiles = [(each.name, each.memory_mib, [p.start for p in each.placements]) for each in cards[0].mig_profiles]
    assert profiles == [
        ("1g.5gb", 4864, [0, 1, 2, 3, 4, 5, 6]),
        ("2g.10gb", 9984, [0, 2, 4]),
        ("3g.20gb", 20096, [0, 4]),
    ]
    assert "no allowed MIG profile for Tesla T4" in " ".join(message for _, _, message in mig.node.events.on_nodes)


async def test_a_container_gets_the_instance_of_its_reservation(mig: MigNode) -> None:
    await mig.start(pass_device_specs=True, mig_minors=mig.node.folder / "minors", dev_root=mig.node.folder / "root")
    (mig.node.folder / "minors").write_text("config 1\ngpu0/gi2/access 40\ngpu0/gi2/ci0/access 41\n")
    await mig.pod("p1", [(A, "3g.20gb", 4)])
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    made = mig_uuid(A, 2, 0)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": made}
    assert not answer.mounts
    assert [device.container_path for device in answer.devices] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap40",
        "/dev/nvidia-caps/nvidia-cap41",
    ]
    (written,) = await mig.reservations("p1")
    assert (written.mig_uuid, written.gpu_instance_id, written.compute_instance_id) == (made, 2, 0)
    assert await mig.places() == [(3, 4)]
    assert await mig.node.phase("p1") == PHASE_SUCCESS
    assert await mig.node.work("p1") == ";"
    await mig.node.token_free()


async def test_several_instances_and_containers(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "1g.5gb", 6), (A, "2g.10gb", 0)], [], [(B, "3g.20gb", 0)])
    first = (await mig.node.kubelet.allocate([f"{A}-0", f"{A}-1"])).container_responses[0]
    assert first.envs["NVIDIA_VISIBLE_DEVICES"] == f"{mig_uuid(A, 13, 0)},{mig_uuid(A, 3, 0)}"
    assert await mig.node.phase("p1") == PHASE_ALLOCATING
    second = (await mig.node.kubelet.allocate([f"{B}-0"])).container_responses[0]
    assert second.envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(B, 1, 0)
    assert all(each.mig_uuid for each in await mig.reservations("p1"))
    assert await mig.places() == [(2, 0), (1, 6)]
    assert await mig.node.phase("p1") == PHASE_SUCCESS


async def test_init_and_app_container_share_one_place(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "2g.10gb", 2)], [(A, "2g.10gb", 2)])
    answers = [(await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0] for _ in range(2)]
    assert {each.envs["NVIDIA_VISIBLE_DEVICES"] for each in answers} == {mig_uuid(A, 4, 0)}
    assert await mig.places() == [(2, 2)]


@pytest.mark.parametrize("end", ["delete", "finish"])
async def test_an_instance_is_given_back_when_its_pod_ends(mig: MigNode, end: str) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p2", [(A, "1g.5gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-1"])
    await (mig.delete("p1") if end == "delete" else mig.finish("p1"))
    await mig.until_places([(1, 4)])


async def test_what_is_in_the_way_and_held_by_nobody_is_taken_away(mig: MigNode) -> None:
    await mig.start(mig_interval_s=600)
    await mig.pod("p1", [(A, "1g.5gb", 1)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.delete("p1")
    await mig.pod("p2", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    assert await mig.places() == [(3, 0)]


async def test_a_node_without_instances_asks_nobody(mig: MigNode) -> None:
    """A list of pods every period from each of thousands of nodes would be a load; instances make one worth while."""
    plugin = await mig.start(mig_interval_s=600)
    await plugin.mig.look()
    before = mig.node.lists_of_pods()
    await plugin.mig.look()
    assert mig.node.lists_of_pods() == before
    await mig.pod("p1", [(A, "1g.5gb", 1)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    before = mig.node.lists_of_pods()
    await plugin.mig.look()
    assert mig.node.lists_of_pods() == before + 1


async def test_t28_what_a_gone_pod_still_runs_on_is_waited_for_and_then_refused(mig: MigNode) -> None:
    plugin = await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    used = mig_uuid(A, 1, 0)
    mig.say(f"in_use: [{used}]")
    await mig.delete("p1")
    await mig.node.until(lambda: plugin.board.state.blocked, "the place is not offered")
    await mig.until_registered_starts({4, 5, 6})
    await mig.pod("p2", [(A, "3g.20gb", 0)])
    mig.wait_for_places(0.3)
    text = await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert "is not free: a process uses MIG instance 1" in text
    assert await mig.node.phase("p2") == PHASE_FAILED
    assert await mig.places() == [(3, 0)]
    await mig.delete("p2")
    await mig.pod("p3", [(A, "3g.20gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    assert await mig.places() == [(3, 0), (3, 4)]
    mig.say("")
    await mig.until_places([(3, 4)])
    await mig.until_registered_starts({0, 1, 2, 3, 4, 5, 6})


async def test_a_place_that_gets_free_in_time_is_served(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    mig.say(f"in_use: [{mig_uuid(A, 1, 0)}]")
    await mig.delete("p1")
    await mig.pod("p2", [(A, "2g.10gb", 0)])
    call = asyncio.create_task(mig.node.kubelet.allocate([f"{A}-0"]))
    await asyncio.sleep(0)
    mig.say("")
    assert (await call).container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(A, 3, 0)
    assert await mig.places() == [(2, 0)]


async def test_a_place_of_another_live_pod_is_refused(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p2", [(A, "1g.5gb", 3)])
    assert "is held by default/p1" in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.node.phase("p2") == PHASE_FAILED
    assert await mig.places() == [(3, 0)]


@pytest.mark.parametrize(
    ("wanted", "work", "said"),
    [
        ([(A, "2g.10gb", 1)], f"{A},NVIDIA,1,1:;", "is no place of 2g.10gb, which begins at 0, 2, 4"),
        ([("GPU-gone", "2g.10gb", 0)], "GPU-gone,NVIDIA,1,1:;", "is not on this node"),
        ([(B, "2g.10gb", 0)], f"{A},NVIDIA,1,1:;", "MIG places on"),
        ([], f"{A},NVIDIA,1,1:;", "but MIG places on no card"),
    ],
)
async def test_reservations_that_cannot_be_served(
    mig: MigNode, wanted: list[tuple[str, str, int]], work: str, said: str
) -> None:
    await mig.start()
    slices = encode_mig_allocations([reservation(*each) for each in wanted])
    await mig.node.bound_pod("p1", work, slices=slices)
    assert said in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.node.phase("p1") == PHASE_FAILED
    await mig.node.token_free()
    assert await mig.places() == []


@pytest.mark.parametrize("slices", ["", "nonsense"])
async def test_a_pod_without_readable_places_is_refused(mig: MigNode, slices: str) -> None:
    await mig.start()
    await mig.node.bound_pod("p1", f"{A},NVIDIA,1,1:;", slices=slices)
    assert MIG_ALLOCATIONS in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.node.phase("p1") == PHASE_FAILED


async def test_what_a_failing_call_made_is_undone(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p0", [(A, "1g.5gb", 6)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p1", [(A, "3g.20gb", 0), (A, "1g.5gb", 6)])
    await refused(mig.node.kubelet.allocate([f"{A}-0", f"{A}-1"]))
    assert await mig.places() == [(1, 6)]


async def test_a_driver_that_refuses_fails_the_pod_with_its_words(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    mig.say("mig_refused: In use by another client")
    assert "the driver: In use by another client" in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.node.phase("p1") == PHASE_FAILED


async def test_t32_cdi_files_name_the_instances_there_are(mig: MigNode) -> None:
    await mig.start(device_list_strategies=("cdi-cri",), cdi_root=mig.node.folder / "cdi")
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    device = mig_uuid(A, 1, 0)
    assert [each.name for each in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={device}"]
    (file,) = (mig.node.folder / "cdi").iterdir()
    assert f'"{device}"' in file.read_text()
    registered = len(mig.node.kubelet.requests)
    await mig.node.kubelet.restart()
    await mig.node.until(lambda: len(mig.node.kubelet.requests) > registered, "registered anew")
    assert f'"{device}"' in file.read_text(), "a container that starts again needs its name"


async def test_t29_a_pod_that_cannot_be_read_protects_its_cards_only(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p2", [(B, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{B}-0"])
    await mig.node.writer.patch_pod_annotations("default", "p1", {MIG_ALLOCATIONS: "nonsense"}, uid="")
    await mig.delete("p2")
    await mig.until_places([], B)
    assert await mig.places() == [(3, 0)]
    await mig.pod("p3", [(A, "1g.5gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-1"])
    assert await mig.places() == [(3, 0), (1, 4)]
    assert any(reason == "MigReservationUnreadable" for _, reason, _ in mig.node.events.on_nodes)


async def test_the_driver_or_the_api_server_gone_takes_nothing_away(mig: MigNode) -> None:
    plugin = await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    fault = mig.node.api.faults.add(Fault("internal-error", verb="list", resource="pods"))
    await mig.node.until(lambda: fault.hits >= 2, "two looks")
    mig.say("driver: gone")
    await plugin.mig.look()
    mig.say("")
    mig.node.api.faults.remove(fault)
    assert await mig.places() == [(3, 0)]
    await mig.delete("p1")
    await mig.until_places([])
