"""The real kubelet with other cards: as many as a machine holds, each cut into many shares; and cards in mode mig."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.components import COUNT_RESOURCE, PROFILES
from tests.cluster.pods import Workspace, allocation
from tests.cluster.processes import wait_until
from tests.node import kubelet
from tests.node.gpu import MOST_CARDS, GpuNode, share_pod
from tests.node.podresources import held_devices

SHARES_PER_CARD = 100
UUIDS = [f"GPU-00000000-0000-4000-8000-{number:012d}" for number in range(MOST_CARDS)]
"""Named, lest they be the cards that another test switched to MIG: that outlives the plugin, as on a real card."""
KIND = {"model": "NVIDIA H200", "count": MOST_CARDS, "memory_mib": 143771, "numa": 0, "uuids": UUIDS}
MANY = json.dumps({"name": "many", "cards": [KIND]})
MIG = PROFILES / "a100-mig.yaml"
MIG_CARDS = 2


@pytest.mark.usefixtures("usual_plugin_again")
def test_sixteen_cards_of_a_hundred_shares(gpus: GpuNode, space: Workspace, tmp_path: Path) -> None:
    profile = tmp_path / "many.yaml"
    profile.write_text(MANY)
    gpus.replace_plugin(profile, {"devicesplitcount": SHARES_PER_CARD})
    wait_until(lambda: gpus.shares() == MOST_CARDS * SHARES_PER_CARD, 60, "kubelet offers 1600 shares")
    wait_until(lambda: len(gpus.registered()) == MOST_CARDS, 60, "sixteen cards are registered")
    space.add(share_pod("p", {"gpu": MOST_CARDS, "gpumem": 1000}))
    (devices,) = allocation(space.wait_phase("p"))
    env = gpus.environment(space, "p")
    assert env["NVIDIA_VISIBLE_DEVICES"].split(",") == [device.uuid for device in devices]
    assert len({device.uuid for device in devices}) == MOST_CARDS
    held = held_devices(kubelet.POD_RESOURCES, COUNT_RESOURCE)[space.name, "p", "c0"]
    assert sorted(one.rpartition("-")[0] for one in held) == sorted(device.uuid for device in devices)


@pytest.mark.usefixtures("usual_plugin_again")
def test_mig_instances_are_made_for_pods(gpus: GpuNode, space: Workspace) -> None:
    gpus.replace_plugin(MIG, {"operatingmode": "mig"}, flags=())
    wait_until(lambda: [card.get("mode") for card in gpus.registered()] == ["mig"] * MIG_CARDS, 60, "cards in mode mig")
    seen = []
    for name in ("a", "b"):
        space.add(share_pod(name, {"gpu": 1, "gpumem": 9000}))
        space.wait_phase(name)
        env = gpus.environment(space, name)
        assert env["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
        assert [key for key in env if key.startswith("CUDA_")] == [], "the card itself keeps the limits"
        seen.append(env["NVIDIA_VISIBLE_DEVICES"])
    assert len(set(seen)) == len(seen), "each pod has an instance of its own"
