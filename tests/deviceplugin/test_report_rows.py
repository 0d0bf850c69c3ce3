"""Plugin rows of the public reports, with their own smallest inputs, through gRPC and the stand-in API server.

Rows that other files hold by name are not told again here: docs/explanation/plugin-traps.md and tests/reports.
"""

from __future__ import annotations

import grpc.aio
import pytest

from hami.core.keys import PHASE_ALLOCATING, PHASE_SUCCESS
from hami.core.model import MigPlacement
from hami.nvml.probe import MigInstanceFacts
from hami.nvml.simulated import SimulatedProbe
from tests.deviceplugin.bench import A, B, Bench
from tests.deviceplugin.mig_node import MigNode

ONE = f"{A},NVIDIA,1000,10:;"
TWO = f"{A},NVIDIA,2000,20:{B},NVIDIA,2000,20:;"


@pytest.mark.parametrize("token", ["pod-1", "pod-2"])
async def test_b79_two_pods_within_a_second_are_told_apart_by_count(node: Bench, token: str) -> None:
    await node.start_plugin()
    await node.bound_pod("pod-1", ONE, token=False)
    await node.bound_pod("pod-2", TWO, token=False)
    await node.set_token(token)
    two = (await node.kubelet.allocate([f"{A}-0", f"{B}-0"])).container_responses[0]
    assert two.envs["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert (await node.phase("pod-2"), await node.phase("pod-1")) == (PHASE_SUCCESS, PHASE_ALLOCATING)
    one = (await node.kubelet.allocate([f"{A}-1"])).container_responses[0]
    assert one.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    await node.token_free()


async def test_b79_a_mismatch_leaves_both_records_as_they_were(node: Bench) -> None:
    await node.start_plugin()
    before = [await node.bound_pod("pod-1", ONE, token=False), await node.bound_pod("pod-2", TWO)]
    with pytest.raises(grpc.aio.AioRpcError, match="device number not matched"):
        await node.kubelet.allocate([f"{A}-0", f"{A}-1", f"{B}-0"])
    assert [await node.pod("pod-1"), await node.pod("pod-2")] == before
    assert await node.token_owner() == "pod-2"


async def test_b82_an_opt_out_is_its_containers_alone_and_a_container_without_cards_shifts_nothing(
    node: Bench,
) -> None:
    plugin = await node.start_plugin(allow_disable_control=True)
    out = {"name": "CUDA_DISABLE_CONTROL", "value": "true"}
    await node.bound_pod(
        "p1",
        f";{A},NVIDIA,1000,0:;{B},NVIDIA,2000,0:;",
        containers=("cpu", "first", "second"),
        env_of={"second": [out]},
    )
    answer = await node.kubelet.allocate([f"{A}-0"], [f"{B}-0"])
    first, second = answer.container_responses
    assert [each.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] for each in (first, second)] == ["1000m", "2000m"]
    preloaded = ["/etc/ld.so.preload" in [mount.container_path for mount in each.mounts] for each in (first, second)]
    assert preloaded == [True, False]
    folders = [each.mounts[1 if on else 0].host_path for each, on in zip((first, second), preloaded, strict=True)]
    assert len(set(folders)) == 2
    assert plugin.stats.served == 1
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_b98_a_driver_that_made_something_else_fails_the_pod_and_what_it_made_goes(
    mig: MigNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = SimulatedProbe.create_mig

    async def elsewhere(self: SimulatedProbe, uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
        return await create(self, uuid, profile, MigPlacement(placement.start + 2, placement.size))

    await mig.start()
    monkeypatch.setattr(SimulatedProbe, "create_mig", elsewhere)
    await mig.pod("p1", [(A, "2g.10gb", 0)])
    with pytest.raises(grpc.aio.AioRpcError, match="made another instance than was asked for"):
        await mig.node.kubelet.allocate([f"{A}-0"])
    assert await mig.places() == []
    assert await mig.node.phase("p1") == "failed"
    await mig.node.token_free()
