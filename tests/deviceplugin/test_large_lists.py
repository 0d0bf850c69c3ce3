"""Many devices over gRPC, with kubelet's limit of 4 MiB a message in force (report B95), NUMA nodes, preferences."""

from __future__ import annotations

import pytest

from hami.core.codec import decode_register
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.bench import A, B, Bench

KUBELET_LIMIT_BYTES = 4 * 1024 * 1024
NODE_ANNOTATIONS_LIMIT_BYTES = 262_144


@pytest.mark.parametrize(
    ("cards", "split", "offered"),
    [(16, 100, 100), (16, 1000, 1000), (8, 20_000, None), (16, 10_000, None), (1, 1_000_000, None)],
)
async def test_b95_the_list_reaches_kubelet_whatever_is_asked_for(
    node: Bench, cards: int, split: int, offered: int | None
) -> None:
    """The stand-in kubelet refuses messages over the limit, as Go's client does."""
    node.profile.write_text(f"cards: [{{model: NVIDIA A100-SXM4-80GB, count: {cards}, memory_mib: 81920, numa: 1}}]")
    await node.start_plugin(nvidia=NvidiaConfig(device_split_count=split, enable_numa_topology=True))
    devices = node.kubelet.lists[-1]
    each = len(devices) // cards
    assert len(devices) == each * cards
    size = sum(device.ByteSize() + 4 for device in devices)
    assert size <= KUBELET_LIMIT_BYTES
    said = [message for _, reason, message in node.events.on_nodes if reason == "SplitCountCapped"]
    if offered is None:
        assert each < split
        assert size > KUBELET_LIMIT_BYTES // 2, "the cap leaves no more than it must"
        assert "4 MiB" in said[0]
        assert f"split count {split}" in said[0]
        assert f"{each} is used" in said[0]
    else:
        assert (each, said) == (offered, [])
    text = (await node.node()).annotations.get(REGISTER_KEY, "")
    await node.until(lambda: node.plugin.registered.is_set(), "registered")
    if text:
        assert {card.slots for card in decode_register(text, "NVIDIA", "test")} == {each}
        assert len(text) < NODE_ANNOTATIONS_LIMIT_BYTES // 8


async def test_a_list_over_the_limit_would_not_reach_kubelet(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the cap the stand-in refuses the message."""
    monkeypatch.setattr("hami.deviceplugin.board.capped_replicas", lambda asked, cards: asked)
    node.profile.write_text("cards: [{model: T4, count: 8, memory_mib: 15360}]")
    await node.start_plugin(wait=False, nvidia=NvidiaConfig(device_split_count=20_000))
    await node.until(lambda: node.kubelet.refusals, "the refusal")
    assert node.kubelet.refusals[0].name == "RESOURCE_EXHAUSTED"
    assert not node.kubelet.devices


async def test_numa_nodes_that_are_not_known_are_not_told(node: Bench) -> None:
    node.profile.write_text("cards: [{model: T4, count: 3, memory_mib: 15360, numa: [1, -1, 0]}]")
    await node.start_plugin(nvidia=NvidiaConfig(device_split_count=1, enable_numa_topology=True))
    told = [[numa.ID for numa in device.topology.nodes] for device in node.kubelet.lists[-1]]
    assert told == [[1], [], [0]]


async def test_an_app_container_keeps_what_its_init_container_had(node: Bench) -> None:
    """kubelet hands the init container's ids on, and asks only for the rest."""
    plugin = await node.start_plugin()
    work = f"{A},NVIDIA,1,0:;{B},NVIDIA,1,0:{A},NVIDIA,1,0:;"
    await node.bound_pod("p1", work, containers=("main",), init=("warm-up",))
    available = [f"{card}-{number}" for card in (A, B) for number in range(3)]
    (first,) = await node.kubelet.prefer(available, [], 1)
    assert first.startswith(A)
    await node.kubelet.allocate([first])
    rest = [each for each in available if each != first]
    ids = await node.kubelet.prefer(rest, [first], 2)
    assert first in ids
    assert any(each.startswith(B) for each in ids)
    answer = (await node.kubelet.allocate(ids)).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{B},{A}"
    assert (plugin.stats.served, plugin.stats.cards_differ) == (2, 0)
    assert await node.phase("p1") == "success"


async def test_an_init_containers_id_of_another_card_is_counted_and_shown(node: Bench) -> None:
    plugin = await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,1,0:;{B},NVIDIA,1,0:;", containers=("main",), init=("warm-up",))
    await node.kubelet.allocate([f"{A}-0"])
    answer = await node.kubelet.allocate([f"{A}-0"])
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == B
    assert plugin.stats.cards_differ == 1
    name, reason, message = node.events.on_pods[-1]
    assert (name, reason) == ("p1", "PreferredCardsNotUsed")
    assert message == f"kubelet booked {A}; the container gets {B}"


@pytest.mark.parametrize(
    ("size", "must"),
    [(0, []), (-1, []), (2**31 - 1, []), (1, ["", "nonsense"]), (1, [f"{'x' * 10_000}-1"])],
)
async def test_b107_odd_questions_are_answered_with_no_preference(node: Bench, size: int, must: list[str]) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,1,0:;")
    answer = await node.kubelet.prefer([f"{A}-0", ""], must, size)
    assert set(answer) <= {f"{A}-0", *must}


async def test_b107_a_lost_card_does_not_fail_the_question(node: Bench) -> None:
    await node.start_plugin()
    node.profile.write_text(node.profile.read_text() + "faults: {lost: [1]}\n")
    await node.until(lambda: node.kubelet.devices[f"{B}-0"] == "Unhealthy", "kubelet hears of it")
    await node.bound_pod("p1", f"{A},NVIDIA,1,0:;")
    assert await node.kubelet.prefer([f"{A}-0", f"{A}-1"], [], 1) == [f"{A}-0"]
    node.profile.write_text(node.profile.read_text() + "faults: {driver: gone}\n")
    assert await node.kubelet.prefer([f"{A}-0", f"{A}-1"], [], 1) == [f"{A}-0"]
