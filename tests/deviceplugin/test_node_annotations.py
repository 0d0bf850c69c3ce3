"""What the plugin says of its node: register, handshake, scores, events; and the cards behind them."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import Callable

import msgspec
import pytest

from hami.core.codec import RegisterForm, decode_pair_scores, decode_register
from hami.deviceplugin.settings import Heartbeat
from hami.kube import paths
from hami.kube.client import MERGE_PATCH
from hami.placement.handshake import HandshakeKind, read_handshake
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY
from tests.deviceplugin.bench import CARDS, NODE, A, B, Bench


async def register_of(node: Bench) -> str:
    return (await node.node()).annotations.get(REGISTER_KEY, "")


async def until_register(node: Bench, wanted: Callable[[str], bool]) -> None:
    async with asyncio.timeout(60):
        while not wanted(await register_of(node)):  # noqa: ASYNC110 - polls the API server
            await asyncio.sleep(0.01)


def health(text: str) -> list[bool]:
    return [each.healthy for each in decode_register(text, "NVIDIA", "test")]


def node_patches(node: Bench) -> int:
    return sum(seen.verb == "patch" and seen.resource == "nodes" for seen in node.api.seen)


async def test_the_register_is_what_the_scheduler_reads(node: Bench) -> None:
    await node.start_plugin(
        nvidia=NvidiaConfig(device_split_count=3, device_memory_scaling=1.8, device_core_scaling=0.29)
    )
    await node.until(lambda: node_patches(node), "the first report")
    annotations = (await node.node()).annotations
    devices = decode_register(annotations[REGISTER_KEY], "NVIDIA", "test")
    assert [(each.id, each.index, each.slots, each.memory_mib, each.core_percent) for each in devices] == [
        (A, 0, 3, 73728, 28),
        (B, 1, 3, 73728, 28),
    ]
    assert [(each.type, each.numa, each.healthy, each.mode) for each in devices] == [
        ("NVIDIA A100-SXM4-40GB", 0, True, "hami-core"),
        ("NVIDIA A100-SXM4-40GB", 1, True, "hami-core"),
    ]
    first = json.loads(annotations[REGISTER_KEY])[0]
    assert "index" not in first
    assert "numa" not in first
    now = datetime.datetime.now(datetime.UTC).timestamp()
    seen = read_handshake(annotations[HANDSHAKE_KEY], now)
    assert (seen.kind, seen.age_s < 60) == (HandshakeKind.REPORTED, True)
    assert SCORE_KEY not in annotations


async def test_seven_field_form_of_the_walk_through(node: Bench) -> None:
    node.profile.write_text("cards: [{model: GeForce RTX 3090, memory_mib: 24576, uuids: [GPU-a]}]")
    await node.start_plugin(
        register_form=RegisterForm.CSV7,
        nvidia=NvidiaConfig(device_split_count=10, device_memory_scaling=3, device_core_scaling=3),
    )
    text = "GPU-a,10,73728,300,NVIDIA-GeForce RTX 3090,0,true:"
    await until_register(node, lambda found: found == text)


async def test_a_period_costs_one_patch_and_a_deleted_register_comes_back(node: Bench) -> None:
    await node.start_plugin()
    await node.until(lambda: node_patches(node) >= 1, "the first report")
    text = await register_of(node)
    gets = sum(seen.verb == "get" and seen.resource == "nodes" for seen in node.api.seen)
    before = node_patches(node)
    await node.until(lambda: node_patches(node) >= before + 4, "four periods")
    assert sum(seen.verb == "get" and seen.resource == "nodes" for seen in node.api.seen) == gets
    for wrong in (None, "[]"):
        await node.writer.patch_node_annotations(NODE, {REGISTER_KEY: wrong})
        await until_register(node, lambda found: found == text)


async def test_on_change_writes_differences_only(node: Bench) -> None:
    await node.start_plugin(heartbeat=Heartbeat.ON_CHANGE)
    await node.until(lambda: node_patches(node) == 1, "the first report")
    looks = len(node.api.seen)
    await node.until(lambda: len(node.api.seen) >= looks + 5, "five looks")
    assert node_patches(node) == 1
    assert HANDSHAKE_KEY not in (await node.node()).annotations
    text = await register_of(node)
    await node.writer.patch_node_annotations(NODE, {REGISTER_KEY: None})
    await until_register(node, lambda found: found == text)


async def test_on_change_removes_the_stamp_of_an_earlier_plugin_once(node: Bench) -> None:
    await node.writer.patch_node_annotations(NODE, {HANDSHAKE_KEY: "Reported 2026-01-01 00:00:00 +0000 UTC"})
    patches = node_patches(node)
    await node.start_plugin(heartbeat=Heartbeat.ON_CHANGE)
    await node.until(lambda: node_patches(node) == patches + 1, "the first report")
    assert HANDSHAKE_KEY not in (await node.node()).annotations
    await node.writer.patch_node_annotations(NODE, {HANDSHAKE_KEY: "Requesting_2026-01-01 00:00:00"})
    looks = len(node.api.seen)
    await node.until(lambda: len(node.api.seen) >= looks + 5, "five looks")
    assert (await node.node()).annotations[HANDSHAKE_KEY] == "Requesting_2026-01-01 00:00:00"


async def test_a_failing_api_server_is_tried_again(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami.deviceplugin.annotate._RETRY_S", 0.01)
    node.api.faults.add(Fault("internal-error", verb="get", resource="nodes", times=3))
    await node.start_plugin()
    await node.until(lambda: node_patches(node), "a report")


async def test_scores_are_published_where_wanted(node: Bench) -> None:
    await node.start_plugin(pair_scores=True)
    await node.until(lambda: node_patches(node), "the first report")
    text = (await node.node()).annotations[SCORE_KEY]
    assert decode_pair_scores(text, "test") == {A: {B: 410}, B: {A: 410}}


async def test_hidden_cards_are_neither_listed_nor_registered(node: Bench) -> None:
    await node.start_plugin(hidden_indexes=(0, 7), hidden_uuids=("GPU-nowhere",))
    assert list(node.kubelet.devices) == [f"{B}-{number}" for number in range(3)]
    await node.until(lambda: node_patches(node), "the first report")
    assert [each.id for each in decode_register(await register_of(node), "NVIDIA", "test")] == [B]
    said = " ".join(message for _, reason, message in node.events.on_nodes if reason == "NodeConfigNotUsed")
    assert "GPU-nowhere" in said
    assert "index 7" in said


async def test_configuration_notes_become_events_on_the_node(node: Bench) -> None:
    await node.start_plugin(notes=("no entry of config.json is for node 'n1'. The nearest is 'N1'",))
    assert node.events.on_nodes[0] == (
        NODE,
        "NodeConfigNotUsed",
        "no entry of config.json is for node 'n1'. The nearest is 'N1'",
    )


async def test_an_error_event_takes_a_card_out_and_quiet_brings_it_back(node: Bench) -> None:
    await node.start_plugin()
    node.profile.write_text(CARDS + "faults: {xids: [{index: 0, xid: 79}, {index: 1, xid: 31}]}\n")
    await node.until(lambda: node.was_unhealthy(f"{A}-0"), "kubelet hears of it")
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Healthy", "kubelet hears of the recovery")
    assert not node.was_unhealthy(f"{B}-0")
    await node.until(lambda: len(node.events.on_nodes) >= 2, "both are said")
    reasons = [reason for _, reason, _ in node.events.on_nodes]
    assert reasons == ["CardUnhealthy", "CardHealthy"]
    assert "XID 79" in node.events.on_nodes[0][2]


async def test_a_lost_card_is_out_of_service_in_list_and_register(node: Bench) -> None:
    await node.start_plugin(report_interval_s=0.05)
    node.profile.write_text(CARDS + "faults: {lost: [1]}\n")
    await node.until(lambda: node.kubelet.devices[f"{B}-2"] == "Unhealthy", "kubelet hears of it")
    await until_register(node, lambda text: health(text) == [True, False])
    node.profile.write_text(CARDS)
    await node.until(lambda: node.kubelet.devices[f"{B}-2"] == "Healthy", "kubelet hears of the recovery")


@pytest.mark.parametrize("fault", ["{driver: gone}", "{unreadable: [0, 1]}"])
async def test_a_driver_that_goes_takes_all_cards_and_gives_them_back(node: Bench, fault: str) -> None:
    await node.start_plugin()
    node.profile.write_text(CARDS + f"faults: {fault}\n")
    await node.until(lambda: set(node.kubelet.devices.values()) == {"Unhealthy"}, "all out of service")
    assert len(node.kubelet.devices) == 6
    node.profile.write_text(CARDS)
    await node.until(lambda: set(node.kubelet.devices.values()) == {"Healthy"}, "all in service")


async def test_b94_no_card_may_be_used_while_another_plugin_offers_our_resource(node: Bench) -> None:
    await node.start_plugin()
    await until_register(node, lambda text: text != "" and health(text) == [True, True])
    status = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    path = f"{paths.node(NODE)}/status"
    await node.client.request("PATCH", path, msgspec.json.encode(status), content_type=MERGE_PATCH)
    node.plugin.offer_check._since_s = time.monotonic() - 61
    await until_register(node, lambda text: health(text) == [False, False])
    status["status"]["allocatable"]["nvidia.com/gpu"] = "6"
    await node.client.request("PATCH", path, msgspec.json.encode(status), content_type=MERGE_PATCH)
    await until_register(node, lambda text: health(text) == [True, True])


async def test_a_card_that_comes_late_is_published(node: Bench) -> None:
    node.profile.write_text("cards: [{model: T4, memory_mib: 15360}]")
    await node.start_plugin()
    assert len(node.kubelet.devices) == 3
    node.profile.write_text("cards: [{model: T4, memory_mib: 15360, count: 2}]")
    await node.until(lambda: len(node.kubelet.devices) == 6, "the second card")


async def test_a_driver_that_comes_late_is_waited_for_and_said(node: Bench) -> None:
    node.profile.write_text(CARDS + "faults: {driver: gone}\n")
    await node.start_plugin(wait=False)
    await node.until(lambda: node.events.on_nodes, "an event")
    assert node.events.on_nodes[0][1] == "DriverUnavailable"
    assert not node.kubelet.requests
    node.profile.write_text(CARDS)
    await node.until(lambda: node.kubelet.devices, "the list")


async def test_a_card_without_a_memory_answer_is_not_registered_with_nothing(node: Bench) -> None:
    node.profile.write_text("cards: [{model: GB10, memory_mib: null}, {model: T4, memory_mib: 15360}]")
    await node.start_plugin()
    await node.until(lambda: node_patches(node), "the first report")
    assert [each.index for each in decode_register(await register_of(node), "NVIDIA", "t")] == [1]
    assert any(reason == "CardUnreadable" for _, reason, _ in node.events.on_nodes)
