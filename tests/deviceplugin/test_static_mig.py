"""Static MIG: none, single, mixed; a socket and resource for each kind of device, NVIDIA's plain path (spec/node 5)."""

from __future__ import annotations

from typing import Any

import pytest

from hami.core.codec import decode_register
from hami.core.keys import PHASE_ALLOCATING
from hami.core.model import MigPlacement
from hami.deviceplugin.board import Board
from hami.deviceplugin.settings import MigStrategy, PluginSettings
from hami.deviceplugin.static_devices import spread
from hami.deviceplugin.static_mig import Offers, mig_resource, sort_cards
from hami.nvml.probe import CardFacts, MigComputeFacts, MigInstanceFacts
from hami.nvml.simulated_mig import SimulatedGeometry, mig_uuid
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.bench import A, B, Bench
from tests.deviceplugin.calls import refused
from tests.deviceplugin.mig_node import MigNode
from tests.nvml.mig_cards import MIG_CARDS

GPU, ONE, THREE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
GIB = 1 << 30
UNLIKE = "invalid MIG configuration: more than one MIG device type present on node"


def laid_out(layout: str, more: str = "") -> str:
    """The two MIG cards with instances; the third card is a T4 without MIG, if `more` does not take it away."""
    return MIG_CARDS.replace("    count: 2\n", f"    count: 2\n    mig: true\n    mig_layout: {layout}\n") + more


async def start(node: Bench, profile: str, strategy: MigStrategy, **changes: Any) -> None:
    node.profile.write_text(profile)
    await node.start_plugin(mig_strategy=strategy, **changes)
    await node.until(lambda: len(node.kubelet.by_resource) == len(node.kubelet.requests), "a list of each resource")


async def test_mixed_has_a_resource_for_each_profile_beside_shared_cards(node: Bench) -> None:
    await start(node, laid_out("[[3, 0], [1, 4], [1, 5]]"), MigStrategy.MIXED)
    assert {(each.resource_name, each.endpoint) for each in node.kubelet.requests} == {
        (GPU, "nvidia-gpu.sock"),
        (ONE, "nvidia-mig-1g.5gb.sock"),
        (THREE, "nvidia-mig-3g.20gb.sock"),
    }
    assert node.kubelet.devices_of(THREE) == {mig_uuid(A, 1, 0): "Healthy", mig_uuid(B, 1, 0): "Healthy"}
    assert len(node.kubelet.devices_of(ONE)) == 4
    assert len(node.kubelet.devices_of(GPU)) == 3
    topology = [device.topology.nodes[0].ID for device in node.kubelet.by_resource[THREE]]
    assert topology == [0, 0]
    cards = decode_register((await node.node()).annotations[REGISTER_KEY], "NVIDIA", "test")
    assert [card.type for card in cards] == ["NVIDIA-Tesla T4"]


async def test_a_static_device_goes_to_whom_kubelet_gave_it(node: Bench) -> None:
    """No pod, no token, no annotation; a pod that waits for a share is not touched."""
    node.profile.write_text(laid_out("[[3, 0]]"))
    (node.folder / "minors").write_text("gpu1/gi1/access 7\ngpu1/gi1/ci0/access 8\n")
    dev = node.folder / "root/dev"
    dev.mkdir(parents=True)
    (dev / "nvidiactl").touch()
    await node.start_plugin(
        mig_strategy=MigStrategy.MIXED,
        pass_device_specs=True,
        dev_root=node.folder / "root",
        mig_minors=node.folder / "minors",
        device_list_strategies=("envvar", "cdi-cri"),
        cdi_root=node.folder / "cdi",
    )
    waiting = f"{A},NVIDIA,1,1:;"
    await node.bound_pod("waiting", waiting)
    device = mig_uuid(B, 1, 0)
    answer = (await node.kubelet.allocate([device], resource=THREE)).container_responses[0]
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": device}
    assert not answer.mounts
    assert [each.container_path for each in answer.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap7",
        "/dev/nvidia-caps/nvidia-cap8",
    ]
    assert [each.name for each in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={device}"]
    written = "".join(path.read_text() for path in (node.folder / "cdi").iterdir())
    assert f'"{device}"' in written
    assert '"1:0"' in written
    assert "nvidia-cap8" in written
    assert (await node.work("waiting"), await node.phase("waiting")) == (waiting, PHASE_ALLOCATING)


async def test_devices_by_index(node: Bench) -> None:
    await start(node, laid_out("[[3, 0], [1, 4]]"), MigStrategy.MIXED, device_id_strategy="index")
    answer = await node.kubelet.allocate([mig_uuid(B, 11, 0), mig_uuid(A, 11, 0)], resource=ONE)
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == "1:1,0:1"


async def test_a_device_that_is_gone_is_refused(node: Bench) -> None:
    await start(node, laid_out("[[3, 0]]"), MigStrategy.MIXED)
    assert "is not on this node (any more)" in await refused(node.kubelet.allocate(["MIG-gone"], resource=THREE))


async def test_single_offers_mig_devices_as_cards(node: Bench) -> None:
    profile = laid_out("[[3, 0], [3, 4]]").replace("  - {model: Tesla T4, memory_mib: 15360}\n", "")
    await start(node, profile, MigStrategy.SINGLE)
    assert [(each.resource_name, each.endpoint) for each in node.kubelet.requests] == [(GPU, "nvidia-gpu.sock")]
    devices = [mig_uuid(card, number, 0) for card in (A, B) for number in (1, 2)]
    assert list(node.kubelet.devices_of(GPU)) == devices
    answer = await node.kubelet.allocate([devices[3]])
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == devices[3]
    assert decode_register((await node.node()).annotations[REGISTER_KEY], "NVIDIA", "test") == ()


async def test_single_without_mig_cards_shares_them(node: Bench) -> None:
    await start(node, MIG_CARDS, MigStrategy.SINGLE)
    assert len(node.kubelet.devices) == 9


async def test_a_layout_that_does_not_suit_is_said_and_served_once_it_does(node: Bench) -> None:
    t4 = "  - {model: Tesla T4, memory_mib: 15360}\n"
    node.profile.write_text(laid_out("[[3, 0], [1, 4]]").replace(t4, ""))
    plugin = await node.start_plugin(mig_strategy=MigStrategy.SINGLE, wait=False)
    said = "migstrategy single cannot be served: invalid MIG configuration: more than one MIG device type"
    await node.until(lambda: any(said in message for _, _, message in node.events.on_nodes), "the event")
    assert node.kubelet.requests == []
    assert not plugin.registered.is_set()
    node.profile.write_text(laid_out("[[3, 0]]").replace(t4, ""))
    await node.until(lambda: len(node.kubelet.devices_of(GPU)) == 2, "the devices")


async def test_resources_come_and_go_with_the_layout(node: Bench) -> None:
    await start(node, laid_out("[[3, 0]]"), MigStrategy.MIXED)
    geometry = SimulatedGeometry(node.kubelet.folder / "hami/simulated-mig.json")
    mig = MigNode.looking_at(node)
    for card in (A, B):
        geometry.destroy_compute_instances(await mig.card(card), 1, in_use=())
        geometry.destroy_gpu_instance(await mig.card(card), 1)
    await node.until(lambda: node.kubelet.by_resource[THREE] == [], "the resource is gone")
    assert not (node.kubelet.folder / "nvidia-mig-3g.20gb.sock").exists()
    assert len(node.kubelet.devices_of(GPU)) == 3


async def test_a_card_out_of_service_takes_its_devices_out(node: Bench) -> None:
    await start(node, laid_out("[[3, 0]]"), MigStrategy.MIXED)
    node.profile.write_text(laid_out("[[3, 0]]", "faults: {lost: [1]}\n"))
    await node.until(
        lambda: node.kubelet.devices_of(THREE) == {mig_uuid(A, 1, 0): "Healthy", mig_uuid(B, 1, 0): "Unhealthy"},
        "one device is out",
    )


async def test_kubelet_prefers_devices_spread_over_cards(node: Bench) -> None:
    await start(node, laid_out("[[1, 0], [1, 1]]"), MigStrategy.MIXED)
    ids = list(node.kubelet.devices_of(ONE))
    plugin = node.kubelet.plugin_of(ONE)
    request = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids[:3], allocation_size=2)
    answer = await plugin.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
    chosen = list(answer.container_responses[0].deviceIDs)
    assert {each in ids[2:] for each in chosen} == {True, False}


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        (["a1", "b1", "b2"], [], 1, ["b1"]),
        (["a1", "b1", "b2"], [], 2, ["b1", "a1"]),
        (["a1", "b1", "b2"], ["b2"], 2, ["b2", "a1"]),
        (["a1", "a2", "b1"], [], 2, ["a1", "b1"]),
        (["a1", "a2", "a3", "b1"], [], 3, ["a1", "a2", "b1"]),
        (["a1"], [], 2, []),
        (["a1", "b1"], ["a1", "b1"], 1, []),
    ],
)
def test_spread(available: list[str], must: list[str], size: int, expected: list[str]) -> None:
    assert spread(available, must, size, {each: each[0] for each in available}) == expected


def card(index: int, *instances: tuple[int, int], mig: bool = True) -> CardFacts:
    """Instances as (slices, compute slices)."""
    made = tuple(
        MigInstanceFacts(
            at,
            slices,
            slices,
            4864 * slices,
            MigPlacement(at, 1),
            False,
            (MigComputeFacts(0, f"MIG-{at}", compute, at),),
        )
        for at, (slices, compute) in enumerate(instances)
    )
    return CardFacts(f"GPU-{index}", index, "A100", 40 * GIB, mig_enabled=mig, mig_instances=made)


@pytest.mark.parametrize(
    ("cards", "problem"),
    [
        ([card(0, (1, 1)), card(1, (1, 1))], ""),
        ([card(0, mig=False)], ""),
        (
            [card(0, (1, 1)), card(1)],
            "invalid MIG configuration: at least one device with migEnabled=true was not configured correctly:"
            " device 1 has no MIG devices configured",
        ),
        ([card(0, (1, 1), (2, 2))], UNLIKE),
        (
            [card(0, (2, 2)), card(1, (2, 1))],
            "invalid MIG configuration: more than one MIG device type present on node",
        ),
        (
            [card(0, (1, 1)), card(1, mig=False)],
            "all devices on the node must be configured with the same migEnabled value",
        ),
    ],
)
def test_single_and_layouts(cards: list[CardFacts], problem: str) -> None:
    offers = sort_cards(cards, PluginSettings("n", mig_strategy=MigStrategy.SINGLE))
    assert offers.problem == problem
    assert bool(offers.static or offers.shared) is not bool(problem)
    assert not problem or set(offers.left_out) == {each.uuid for each in cards}


def test_mixed_skips_parts_of_instances_and_names_empty_cards() -> None:
    cards = [card(0, (2, 1), (1, 1)), card(1), card(2, mig=False)]
    offers = sort_cards(cards, PluginSettings("n", mig_strategy=MigStrategy.MIXED))
    assert [(resource, [each.compute.uuid for each in devices]) for resource, devices in offers.static.items()] == [
        (ONE, ["MIG-1"])
    ]
    assert offers.left_out == {"GPU-1": "device 1 has no MIG devices configured"}
    assert [each.uuid for each in offers.shared] == ["GPU-2"]


def test_none_leaves_mig_cards_out_with_the_reason() -> None:
    offers = sort_cards([card(0, (1, 1)), card(1, mig=False)], PluginSettings("n"))
    assert [each.uuid for each in offers.shared] == ["GPU-1"]
    assert "MIG mode is on" in offers.left_out["GPU-0"]
    assert offers.static == {}
    assert sort_cards([], PluginSettings("n")) == Offers()


def test_resources_of_variants() -> None:
    assert mig_resource("1g.5gb+me") == "nvidia.com/mig-1g.5gb.me"


async def test_hidden_cards_do_not_count_for_a_strategy() -> None:
    settings = PluginSettings("n", mig_strategy=MigStrategy.SINGLE, hidden_indexes=(1,))
    board = Board(settings)
    await board.set_cards((card(0, (1, 1)), card(1, mig=False)))
    assert list(board.state.static) == [GPU]


async def test_instances_of_mode_mig_are_not_offered_to_others_while_a_pod_has_them(node: Bench) -> None:
    """From mode mig to migstrategy mixed: the card waits for its last pod, is then switched back and is shared."""
    mig = MigNode(node)
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await node.kubelet.allocate([f"{A}-0"])
    await node.stop_plugin()
    plugin = await node.start_plugin(mig_strategy=MigStrategy.MIXED, mig_interval_s=0.05)
    await node.until(lambda: len(plugin.board.state.cards) == 2, "the other cards are shared")
    assert plugin.board.state.static == {}
    assert "last pod" in plugin.board.state.left_out[A]
    await mig.delete("p1")
    await node.until(lambda: len(plugin.board.state.cards) == 3, "all cards are shared")


async def test_what_an_administrator_makes_on_a_shared_card_is_never_taken_away(node: Bench) -> None:
    await start(node, MIG_CARDS, MigStrategy.MIXED, mig_interval_s=0.02)
    mig = MigNode.looking_at(node)
    geometry = SimulatedGeometry(node.kubelet.folder / "hami/simulated-mig.json")
    geometry.set_mode(await mig.card(), enabled=True, in_use=())
    geometry.create_compute_instance(
        await mig.card(), geometry.create_gpu_instance(await mig.card(), 2, MigPlacement(0, 4))
    )
    await node.until(lambda: node.kubelet.devices_of(THREE) == {mig_uuid(A, 1, 0): "Healthy"}, "the device is offered")
    lists = node.lists_of_pods()
    await node.plugin.mig.look()
    assert await mig.places() == [(3, 0)]
    assert node.lists_of_pods() == lists, "nothing of ours to look after"
