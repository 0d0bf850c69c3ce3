"""Node names at the limits of what a label value may be (spec/scheduler 11.1 no. 23: upstream's PATCH fails whole)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_SUCCESS, VGPU_NODE
from hami.core.objects import pod_decoder
from hami.core.token import encode_token
from hami.kube import paths
from hami.vendors.nvidia.names import ALLOCATED_KEY, REGISTER_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.bench import A, Bench


@pytest.mark.parametrize("length", [1, 63, 64, 253])
async def test_a_pod_is_served_and_labelled_where_that_is_allowed(node: Bench, length: int) -> None:
    name = "n" * length
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await node.client.request("POST", paths.NODES, msgspec.json.encode(body))
    await node.start_plugin(node_name=name)
    work = f"{A},NVIDIA,3000,30:;"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod["spec"] = {"containers": [{"name": "main", "image": "none"}]}
    made = pod_decoder.decode(await node.client.request("POST", paths.pods_in("default"), msgspec.json.encode(pod)))
    await node.writer.patch_node_annotations(name, {NODE_LOCK: encode_token("default", "p", 1_800_000_000)})
    notes = {VGPU_NODE: name, BIND_PHASE: PHASE_ALLOCATING, TO_ALLOCATE_KEY: work, ALLOCATED_KEY: work}
    await node.writer.bind("default", "p", uid=made.metadata.uid, resource_version="", node=name, annotations=notes)
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == A
    served = await node.pod("p")
    assert served.annotations[BIND_PHASE] == PHASE_SUCCESS
    assert served.labels == ({VGPU_NODE: name} if length <= 63 else {})
    async with asyncio.timeout(60):
        while NODE_LOCK in (await node.writer.get_node(name)).annotations:  # noqa: ASYNC110 - the plugin's own doing
            await asyncio.sleep(0.005)
    assert REGISTER_KEY in (await node.writer.get_node(name)).annotations
