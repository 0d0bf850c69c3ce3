"""examples/: the device plugin hands their containers what the files ask for, over the kubelet's own protocol."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.placement.announce import decision_annotations
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.sim.profiles import FOLDER as PROFILES
from hami.vendors.nvidia.names import TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE, A, bench
from tests.examples.example_pods import CARDS, FILES, MEMORY, admitted, pods_of
from tests.placement.fakes import REGISTRY, card, make_node, make_world

CORES = "nvidia.com/gpucores"


def bodies_of(file: Path) -> list[dict[str, Any]]:
    return [body for _, body in pods_of(file.read_text())]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
async def test_containers_get_the_limits_they_ask_for(file: Path) -> None:
    kind = yaml.safe_load((PROFILES / f"{CARDS[file.name][0]}.yaml").read_text())["cards"][0]
    world = make_world()
    world.on_node(make_node(NODE, [card(0, id=A, memory_mib=kind["memory_mib"], type=kind["model"])]))
    engine = Engine(world)
    with tempfile.TemporaryDirectory(prefix="hami-ex-") as folder:
        async with bench(Path(folder)) as node:
            await node.start_plugin()
            for number, body in enumerate(bodies_of(file)):
                pod = admitted(body)
                assert engine.filter(pod, NodeNames.of([NODE])).node == NODE
                claim = world.ledger.get(pod.metadata.uid)
                assert claim is not None
                work = decision_annotations(claim, REGISTRY, 0.0)[TO_ALLOCATE_KEY]
                containers = tuple(each["name"] for each in body["spec"]["containers"])
                await node.bound_pod(pod.metadata.name, work, containers=containers)
                for each in body["spec"]["containers"]:
                    limits = each["resources"].get("limits", {})
                    if MEMORY not in limits:
                        continue
                    (given,) = (await node.kubelet.allocate([f"{A}-{number}"])).container_responses
                    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == A
                    assert given.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{limits[MEMORY]}m"
                    assert given.envs["CUDA_DEVICE_SM_LIMIT"] == str(limits.get(CORES, 0))
                    assert "/etc/ld.so.preload" in [mount.container_path for mount in given.mounts]
