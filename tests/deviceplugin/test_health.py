"""Cards go out of service and come back: what counts, which policy brings them back, what is said each way."""

from __future__ import annotations

import pytest

from hami.deviceplugin.health import HealthTracker, ignored_xids
from hami.deviceplugin.settings import HealthSettings, Recovery
from hami.nvml.probe import CRITICAL_ERROR, ECC_DOUBLE_BIT, ECC_SINGLE_BIT, NO_EVENTS, HealthEvent
from hami.vendors.nvidia.names import RECOVERED_KEY
from tests.deviceplugin.bench import CARDS, NODE, A, B, Bench

APPLICATION = (13, 31, 43, 45, 68, 109)


def tracker(*recovery: Recovery, quiet_s: float = 100) -> HealthTracker:
    return HealthTracker(HealthSettings(recovery=frozenset(recovery), xid_quiet_s=quiet_s))


@pytest.mark.parametrize(
    ("disabled", "enabled", "xid", "unhealthy"),
    [
        *(("", "", xid, False) for xid in APPLICATION),
        *(("", "", xid, True) for xid in (48, 63, 64, 74, 79, 94, 95, 119)),
        ("", "31", 31, True),
        ("31", "31", 31, True),
        ("94", "", 94, False),
        ("94,nonsense", "", 48, True),
        (" 94 ,\u00b2,-1,", "\u00b3", 94, False),
        ("79", "all", 79, True),
    ],
)
def test_b89_which_errors_count(disabled: str, enabled: str, xid: int, unhealthy: bool) -> None:
    health = HealthTracker(ignored_xids(disabled, enabled))
    health.events([HealthEvent(A, CRITICAL_ERROR, xid)], [A, B], 0)
    assert health.unhealthy(0) == ({A: f"XID {xid}"} if unhealthy else {})


@pytest.mark.parametrize("word", ["all", "xids", "ALL,48"])
def test_health_checks_can_be_turned_off(word: str) -> None:
    assert not ignored_xids(word, "48").enabled


@pytest.mark.parametrize(
    ("kind", "disabled", "unhealthy"),
    [
        (ECC_DOUBLE_BIT, "", True),
        (ECC_DOUBLE_BIT, "48", False),
        (ECC_DOUBLE_BIT, "79", True),
        (ECC_SINGLE_BIT, "", False),
        (NO_EVENTS, "", False),
        ("", "", False),
    ],
)
def test_a_double_bit_error_counts_as_its_xid_does(kind: str, disabled: str, unhealthy: bool) -> None:
    health = HealthTracker(ignored_xids(disabled, ""))
    health.events([HealthEvent(A, kind)], [A, B], 0)
    assert set(health.unhealthy(0)) == ({A} if unhealthy else set())


def test_an_error_of_nobody_concerns_all() -> None:
    health = tracker()
    health.events([HealthEvent("GPU-unknown", CRITICAL_ERROR, 79)], [A, B], 0)
    assert set(health.unhealthy(0)) == {A, B}


def test_quiet_needs_an_answer_too() -> None:
    health = tracker(Recovery.QUIET)
    health.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A], 0)
    health.lost({A: "GPU is lost"})
    assert "does not answer" in health.unhealthy(500)[A]
    health.lost({})
    assert health.unhealthy(501) == {}


def test_another_error_starts_the_quiet_time_anew() -> None:
    health = tracker(Recovery.QUIET)
    for now_s in (0, 90):
        health.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A], now_s)
    assert set(health.unhealthy(189)) == {A}
    assert health.unhealthy(190) == {}


@pytest.mark.parametrize("recovery", [(), (Recovery.RESET,), (Recovery.OPERATOR,)])
def test_without_the_policy_quiet_brings_nothing_back(recovery: tuple[Recovery, ...]) -> None:
    health = tracker(*recovery)
    health.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A], 0)
    assert set(health.unhealthy(1e9)) == {A}
    never = tracker(Recovery.QUIET, quiet_s=0)
    never.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A], 0)
    assert set(never.unhealthy(1e9)) == {A}


def test_a_reset_is_a_card_that_was_lost_and_answers() -> None:
    health = tracker(Recovery.RESET)
    health.events([HealthEvent(uuid, CRITICAL_ERROR, 79) for uuid in (A, B)], [A, B], 0)
    health.lost({A: "GPU is lost"})
    health.lost({})
    assert set(health.unhealthy(1)) == {B}
    patient = tracker(Recovery.QUIET)
    patient.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A], 0)
    patient.lost({A: "GPU is lost"})
    patient.lost({})
    assert set(patient.unhealthy(1)) == {A}


def test_a_driver_that_was_silent_has_reset_no_card() -> None:
    health = tracker(Recovery.RESET)
    health.events([HealthEvent(A, CRITICAL_ERROR, 79)], [A, B], 0)
    health.silent_driver([A, B], "no answer of the driver")
    assert health.unhealthy(0)[B] == "does not answer: no answer of the driver"
    health.lost({})
    assert set(health.unhealthy(1)) == {A}


def test_damage_lasts_as_long_as_it_is_seen() -> None:
    health = tracker(*Recovery, quiet_s=1)
    health.damaged({A: "a memory row could not be remapped"})
    assert health.unhealthy(1e9) == {A: "a memory row could not be remapped"}
    assert health.forgive([A]) == frozenset()
    health.damaged({})
    assert health.unhealthy(1e9) == {}


def test_the_operator_forgives_errors() -> None:
    health = tracker(Recovery.OPERATOR)
    health.events([HealthEvent(uuid, CRITICAL_ERROR, 79) for uuid in (A, B)], [A, B], 0)
    assert health.forgive([A, "GPU-unknown"]) == {A}
    assert set(health.unhealthy(0)) == {B}


# --- on a node -----------------------------------------------------------------------------------------------------


def said(node: Bench, reason: str) -> list[str]:
    return [message for _, found, message in node.events.on_nodes if found == reason]


@pytest.mark.parametrize(
    ("faults", "lasts", "why"),
    [
        ("{xids: [{index: 0, xid: 79}]}", False, "XID 79"),
        ("{ecc: [{index: 0}]}", False, "double-bit memory error"),
        ("{damaged: [0]}", True, "a memory row could not be remapped"),
        ("{lost: [0]}", True, "does not answer: GPU is lost"),
    ],
)
async def test_out_of_service_is_told_to_kubelet_node_and_metrics_and_back(
    node: Bench, faults: str, lasts: bool, why: str
) -> None:
    plugin = await node.start_plugin()
    node.profile.write_text(CARDS + f"faults: {faults}\n")
    await node.until(lambda: node.was_unhealthy(f"{A}-0"), "kubelet hears of it")
    await node.until(lambda: said(node, "CardUnhealthy"), "an event")
    (message,) = said(node, "CardUnhealthy")
    assert f"card {A} is out of service: {why}. It comes back after 0.2 s without errors" in message
    assert plugin.health_stats.taken_out == 1
    if lasts:
        assert node.kubelet.devices[f"{A}-0"] == "Unhealthy"
        assert plugin.health_stats.taken_back == 0
    node.profile.write_text(CARDS)
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Healthy", "kubelet hears of the recovery")
    await node.until(lambda: said(node, "CardHealthy"), "an event")
    assert why in said(node, "CardHealthy")[0]
    assert not node.was_unhealthy(f"{B}-0")
    assert (plugin.health_stats.taken_out, plugin.health_stats.taken_back) == (1, 1)


async def test_the_operators_annotation_brings_a_card_back_and_goes(node: Bench) -> None:
    operator = HealthSettings(recovery=frozenset({Recovery.OPERATOR}), poll_s=0.05)
    await node.start_plugin(health=operator)
    node.profile.write_text(CARDS + "faults: {xids: [{index: 0, xid: 79}, {index: 1, xid: 79}]}\n")
    await node.until(lambda: set(node.kubelet.devices.values()) == {"Unhealthy"}, "both out of service")
    assert any(f"by the annotation {RECOVERED_KEY}={A} on the node" in each for each in said(node, "CardUnhealthy"))
    await node.writer.patch_node_annotations(NODE, {RECOVERED_KEY: f"{A}, GPU-typo"})
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Healthy", "the first back")
    assert node.kubelet.devices[f"{B}-0"] == "Unhealthy"
    await node.until(lambda: said(node, "CardRecoveryRefused"), "a word about the typing error")
    assert "GPU-typo" in said(node, "CardRecoveryRefused")[0]
    await node.writer.patch_node_annotations(NODE, {RECOVERED_KEY: "all"})
    await node.until(lambda: node.kubelet.devices[f"{B}-0"] == "Healthy", "the second back")
    seen = len(node.api.seen)
    await node.until(lambda: len(node.api.seen) > seen + 4, "two more reports")
    assert RECOVERED_KEY not in (await node.node()).annotations


async def test_an_operators_word_that_does_not_count_is_said(node: Bench) -> None:
    await node.start_plugin(health=HealthSettings(recovery=frozenset(), poll_s=0.05))
    node.profile.write_text(CARDS + "faults: {xids: [{index: 0, xid: 79}]}\n")
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Unhealthy", "kubelet hears of it")
    assert "comes back when the plugin is started anew" in said(node, "CardUnhealthy")[0]
    await node.writer.patch_node_annotations(NODE, {RECOVERED_KEY: A})
    await node.until(lambda: said(node, "CardRecoveryRefused"), "an event")
    assert "--card-recovery" in said(node, "CardRecoveryRefused")[0]
    assert node.kubelet.devices[f"{A}-0"] == "Unhealthy"


async def test_a_card_without_error_events_is_said_once_and_still_watched(node: Bench) -> None:
    node.profile.write_text(CARDS + "faults: {no_events: [1]}\n")
    await node.start_plugin()
    await node.until(lambda: said(node, "CardWithoutErrorEvents"), "an event")
    assert B in said(node, "CardWithoutErrorEvents")[0]
    assert set(node.kubelet.devices.values()) == {"Healthy"}
    node.profile.write_text(CARDS + "faults: {no_events: [1], lost: [1]}\n")
    await node.until(lambda: node.kubelet.devices[f"{B}-0"] == "Unhealthy", "its silence is seen")
    assert len(said(node, "CardWithoutErrorEvents")) == 1


async def test_running_pods_are_left_alone_when_their_card_goes(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,3000,30:;")
    await node.kubelet.allocate([f"{A}-0"])
    before = await node.pod("p1")
    node.profile.write_text(CARDS + "faults: {lost: [0]}\n")
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Unhealthy", "kubelet hears of it")
    assert await node.pod("p1") == before
    assert (node.folder / f"hook/vgpu/containers/{before.metadata.uid}_main").is_dir()


async def test_checks_turned_off_hear_no_errors(node: Bench) -> None:
    await node.start_plugin(health=ignored_xids("all", ""))
    node.profile.write_text(CARDS + "faults: {xids: [{index: 0, xid: 79}], lost: [1]}\n")
    await node.until(lambda: node.kubelet.devices[f"{B}-0"] == "Unhealthy", "silence is seen all the same")
    assert node.kubelet.devices[f"{A}-0"] == "Healthy"


async def test_b101_a_hidden_cards_errors_are_nobodys_concern(node: Bench) -> None:
    plugin = await node.start_plugin(hidden_uuids=(B,))
    node.profile.write_text(CARDS + "faults: {xids: [{index: 1, xid: 79}, {index: 0, xid: 79, id: later}]}\n")
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Unhealthy", "kubelet hears of the other")
    assert [A in message for message in said(node, "CardUnhealthy")] == [True]
    assert plugin.health_stats.taken_out == 1
