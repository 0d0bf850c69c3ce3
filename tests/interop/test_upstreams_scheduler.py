"""Our plugin under upstream's scheduler: its writes are golden files, one for each way that releases have of writing.

The pod has an init container and two others; only `main` asks for a card, in the last file only `setup`.
"""

from __future__ import annotations

import msgspec
import pytest

from hami.core.keys import NODE_LOCK
from hami.kube import paths
from tests.deviceplugin.bench import A, B, Bench
from tests.deviceplugin.conftest import node as node
from tests.interop.steps import NODE, POD, Player, annotations_of, get, golden

ROWS = {
    "2.10.0": ("main", ";;;"),
    "2.10.0-by-model": ("main", ";"),
    "2.7.1": ("main", ";;"),
    "2.4.1": ("main", ";;"),
    "2.3": ("main", ";;"),
    "2.10.0-init-only": ("setup", ";;;"),
}
"""Container that is served, and the work list that our plugin leaves: as many segments as it found."""


async def create(bench: Bench, asks: str) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}

    def container(name: str) -> dict[str, object]:
        return {
            "name": name,
            "image": "none",
            **({"resources": {"limits": limits, "requests": limits}} if name == asks else {}),
        }

    spec = {"initContainers": [container("setup")], "containers": [container("main"), container("idle")]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    await bench.client.request("POST", paths.pods_in("default"), msgspec.json.encode(body))


@pytest.fixture
async def bench(node: Bench) -> Bench:
    await node.start_plugin()
    return node


@pytest.mark.parametrize("release", ROWS)
async def test_its_pods_are_served_and_it_reads_what_we_write(bench: Bench, release: str) -> None:
    container, rest = ROWS[release]
    await create(bench, container)
    scheduler = Player(bench.client, f"upstream-scheduler-{release}", card=B)
    await scheduler.play("filter")
    before = await annotations_of(bench.client, POD)
    await scheduler.play("bind")
    answer = (await bench.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == B
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert answer.envs["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert any(mount.host_path.endswith(f"_{container}") for mount in answer.mounts)
    await bench.token_free()
    assert NODE_LOCK not in await annotations_of(bench.client, NODE)
    pod = await get(bench.client, POD)
    ours = golden("our-plugin")
    expected = {**before, "hami.io/bind-time": "1787277601", **ours["annotations"]}
    expected["hami.io/vgpu-devices-to-allocate"] = rest
    assert pod["metadata"]["annotations"] == expected
    assert pod["metadata"]["labels"] == ours["labels"]


async def test_the_register_that_it_reads(bench: Bench) -> None:
    """2.8 and later decode JSON: keys in Go's order, zero values left out."""
    await bench.until(lambda: any(each.verb == "patch" and each.resource == "nodes" for each in bench.api.seen), "it")
    text = (await annotations_of(bench.client, NODE))["hami.io/node-nvidia-register"]
    assert text.replace(A, "$card-a").replace(B, "$card-b") == golden("our-plugin")["register"]
