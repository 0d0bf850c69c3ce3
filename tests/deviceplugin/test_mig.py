"""Mode mig: instances made at Allocate, given back when the pod is gone, whatever is killed in between."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core.codec import decode_register, encode_mig_allocations
from hami.core.keys import MIG_ALLOCATIONS, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.core.model import MigPlacement
from hami.deviceplugin.cleanup import clean_up
from hami.nvml.simulated import SimulatedProbe
from hami.nvml.simulated_mig import SimulatedGeometry, mig_uuid
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import MigAllowlistEntry, NvidiaConfig
from hami.vendors.nvidia.names import MODE_MIG, REGISTER_KEY
from tests.deviceplugin.bench import NODE, A, B, Bench
from tests.deviceplugin.mig_node import MigNode, reservation
from tests.deviceplugin.test_allocate import refused

ONES = NvidiaConfig(
    device_split_count=3, mig_profile_allowlist=(MigAllowlistEntry(("A100",), ("1g.5gb", "2g.10gb", "3g.20gb")),)
)


@pytest.fixture
def mig(node: Bench) -> MigNode:
    return MigNode(node)


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


async def test_killed_before_the_annotation_is_written(mig: MigNode) -> None:
    """The instance is there, nobody was told: the next plugin finds it by its place."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    fault = mig.node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=30, times=1))
    call = asyncio.create_task(mig.node.kubelet.allocate([f"{A}-0"]))
    await mig.node.until(lambda: fault.hits, "the write")
    assert await mig.places() == [(3, 0)]
    await mig.node.kill_plugin(call)
    await (await mig.start()).mig.look()
    assert await mig.places() == [(3, 0)]
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(A, 1, 0)
    assert (await mig.reservations("p1"))[0].mig_uuid == mig_uuid(A, 1, 0)


async def test_killed_between_gpu_instance_and_compute_instance(mig: MigNode) -> None:
    """A half made instance serves nobody: it is taken away, and made whole for the pod that holds its place."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.stop_plugin()
    geometry = SimulatedGeometry(mig.node.kubelet.folder / "hami/simulated-mig.json")
    geometry.create_gpu_instance(await mig.card(), 2, MigPlacement(0, 4))
    geometry.create_gpu_instance(await mig.card(B), 2, MigPlacement(0, 4))
    await mig.start()
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(A, 1, 0)
    assert await mig.places() == [(3, 0)]
    assert (await mig.card(B)).mig_instances == ()


async def test_killed_after_the_annotation_was_written(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    await mig.pod("p2", [(A, "1g.5gb", 4)])
    await mig.start()
    await mig.node.kubelet.allocate([f"{A}-0"])
    assert await mig.places() == [(3, 0), (1, 4)]
    await mig.delete("p1")
    await mig.until_places([(1, 4)])


async def test_after_a_reboot_the_instances_of_live_pods_are_made_again(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    (mig.node.kubelet.folder / "hami/simulated-mig.json").unlink()
    assert not (await mig.card()).mig_enabled
    await mig.start()
    await mig.until_places([(3, 4)])
    assert (await mig.card()).mig_instances[0].compute[0].uuid == (await mig.reservations("p1"))[0].mig_uuid


async def test_instances_of_pods_of_older_releases_are_left_alone(mig: MigNode) -> None:
    """HAMi 2.5 to 2.9 wrote a number instead of a place: what such a pod holds is not known."""
    plugin = await mig.start()
    geometry = SimulatedGeometry(mig.node.kubelet.folder / "hami/simulated-mig.json")
    await mig.node.bound_pod("old", f"{A}[0-1],NVIDIA,4864,15:;", token=False)
    geometry.create_compute_instance(
        await mig.card(), geometry.create_gpu_instance(await mig.card(), 2, MigPlacement(0, 4))
    )
    await plugin.mig.look()
    assert await mig.places() == [(3, 0)]
    await mig.pod("p1", [(A, "1g.5gb", 0)])
    mig.wait_for_places(0.3)
    assert "may be that of default/old" in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.places() == [(3, 0)]
    await mig.delete("old")
    await mig.until_places([])


async def test_t30_one_instance_that_cannot_be_made_again_stops_no_other(mig: MigNode) -> None:
    """The driver gives it another id, which the running container does not know."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p2", [(A, "3g.20gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    (first,) = await mig.reservations("p1")
    other = encode_mig_allocations([msgspec.structs.replace(first, mig_uuid="MIG-of-another-driver")])
    await mig.node.writer.patch_pod_annotations("default", "p1", {MIG_ALLOCATIONS: other}, uid="")
    (mig.node.kubelet.folder / "hami/simulated-mig.json").unlink()
    plugin = await mig.start()
    await mig.until_places([(3, 4)])
    await plugin.mig.look()
    assert await mig.places() == [(3, 4)]
    lost = [message for _, reason, message in mig.node.events.on_nodes if reason == "MigInstanceLost"]
    assert len(lost) == 1
    assert "MIG-of-another-driver of pod default/p1 is gone" in lost[0]


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


async def test_t27_hidden_cards_are_left_alone(mig: MigNode) -> None:
    await (await mig.start(hidden_indexes=(1,))).mig.look()
    assert [card.mig_enabled for card in await mig.cards()] == [True, False, False]
    assert {device.rpartition("-")[0] for device in mig.node.kubelet.devices} == {A}


async def test_a_card_with_shares_of_it_becomes_a_mig_card_when_they_end(mig: MigNode) -> None:
    await mig.start(mode="hami-core")
    await mig.node.bound_pod("p1", f"{A},NVIDIA,3000,30:;")
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    plugin = await mig.start()
    assert [card.mig_enabled for card in await mig.cards()] == [False, True, False]
    assert [card.uuid for card in plugin.board.state.cards] == [B]
    assert any("p1 uses it" in message for _, _, message in mig.node.events.on_nodes)
    await mig.delete("p1")
    await mig.node.until(lambda: len(plugin.board.state.cards) == 2, "both cards are offered")


async def test_b97_back_in_shared_mode_mig_is_switched_off_when_nobody_uses_it(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    plugin = await mig.start(mode="hami-core")
    await mig.node.until(lambda: len(plugin.board.state.cards) == 2, "the free card and the T4 are shared")
    assert [card.mig_enabled for card in await mig.cards()] == [True, False, False]
    assert await mig.places() == [(3, 0)]
    assert any("default/p1 still uses it" in message for _, _, message in mig.node.events.on_nodes)
    await mig.delete("p1")
    await mig.node.until(lambda: len(plugin.board.state.cards) == 3, "all cards are shared")
    assert [card.mig_enabled for card in await mig.cards()] == [False, False, False]
    await mig.node.bound_pod("p2", f"{A},NVIDIA,3000,30:;")
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"


async def test_a_plugin_that_leaves_the_node_switches_mig_off_where_nobody_uses_it(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    settings, writer = mig.node.settings(mode=MODE_MIG, cdi_root=mig.node.folder / "cdi"), mig.node.writer
    probe = SimulatedProbe(mig.node.profile, NODE, settings.state_dir)
    await clean_up(settings, writer, probe, mig.node.events)
    assert [card.mig_enabled for card in await mig.cards()] == [True, False, False]
    assert await mig.places() == [(3, 0)]
    await mig.delete("p1")
    await clean_up(settings, writer, probe, mig.node.events)
    assert [card.mig_enabled for card in (await probe.cards()).cards] == [False, False, False]
    assert not settings.state_dir.exists()


async def test_a_card_that_cannot_be_switched_back_yet_is_tried_again(mig: MigNode) -> None:
    await mig.start()
    await mig.node.stop_plugin()
    mig.say(f"in_use: [{A}]")
    plugin = await mig.start(mode="hami-core")
    await mig.node.until(lambda: len(plugin.board.state.cards) == 2, "the free card and the T4 are shared")
    await plugin.mig.look()
    assert [card.mig_enabled for card in await mig.cards()] == [True, False, False]
    assert any("stays on: In use" in message for _, _, message in mig.node.events.on_nodes)
    mig.say("")
    await mig.node.until(lambda: len(plugin.board.state.cards) == 3, "all cards are shared")


async def test_an_administrators_mig_card_on_a_shared_node_is_left_alone(mig: MigNode) -> None:
    text = mig.node.profile.read_text()
    mig.node.profile.write_text(
        text.replace("    count: 2\n", "    count: 2\n    mig: true\n    mig_layout: [[3, 0]]\n")
    )
    plugin = await mig.start(mode="hami-core")
    await plugin.mig.look()
    assert [len(card.mig_instances) for card in await mig.cards()] == [1, 1, 0]
    assert [card.name for card in plugin.board.state.cards] == ["Tesla T4"]
    assert "MIG mode is on" in plugin.board.state.left_out[A]


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
