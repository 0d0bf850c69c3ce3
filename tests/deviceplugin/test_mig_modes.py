"""Cards that change between shares and MIG: when nobody uses them, and never behind an administrator's back."""

from __future__ import annotations

from hami.deviceplugin.cleanup import clean_up
from hami.nvml.simulated import SimulatedProbe
from hami.vendors.nvidia.names import MODE_MIG
from tests.deviceplugin.bench import NODE, A, B
from tests.deviceplugin.mig_node import MigNode


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
