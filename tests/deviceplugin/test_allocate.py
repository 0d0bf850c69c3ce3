"""Allocate over gRPC: what the container gets, what is written, whom nobody harms."""

from __future__ import annotations

import asyncio
import re

import grpc
import grpc.aio
import pytest

from hami.core.keys import PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS, VGPU_NODE
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import NvidiaConfig
from tests.deviceplugin.bench import DEADLINE_S, NODE, A, B, Bench
from tests.deviceplugin.calls import ONE, refused, writes


async def test_a_container_gets_env_and_mounts_and_the_pod_is_done(node: Bench) -> None:
    await node.start_plugin(nvidia=NvidiaConfig(device_split_count=3, device_memory_scaling=1.5))
    pod = await node.bound_pod("p1", ONE)
    before = writes(node, "pods")
    answer = (await node.kubelet.allocate([f"{B}-1"])).container_responses[0]

    vgpu, hook = node.folder / "hook/vgpu", node.folder / "hook"
    cache = re.fullmatch(rf"{vgpu}/([0-9a-f-]{{36}})\.cache", answer.envs.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE"))
    assert cache
    assert dict(answer.envs) == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_OVERSUBSCRIBE": "true",
        "LIBCUDA_LOG_LEVEL": "1",
    }
    folder, limits = vgpu / "containers" / f"{pod.metadata.uid}_main", vgpu / "limits" / f"{pod.metadata.uid}_main"
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts] == [
        (f"{hook}/vgpu/libvgpu.so", f"{vgpu}/libvgpu.so", True),
        (f"{hook}/vgpu", str(folder), False),
        ("/tmp/vgpulock", str(node.folder / "lock"), False),
        ("/etc/ld.so.preload", f"{vgpu}/ld.so.preload", True),
        (cache.group(), f"{folder}/{cache[1]}.cache", False),
        ("/usr/local/vgpu/vgpu.conf", str(limits), True),
    ]
    told = dict(line.split("=", 1) for line in limits.read_text().splitlines())
    assert told.items() >= answer.envs.items()
    assert told["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == cache.group()
    assert folder.stat().st_mode & 0o777 == 0o777
    assert (node.folder / "lock").stat().st_mode & 0o777 == 0o777

    done = await node.pod("p1")
    assert await node.work("p1") == ";"
    assert await node.phase("p1") == PHASE_SUCCESS
    assert done.labels[VGPU_NODE] == NODE
    await node.token_free()
    assert writes(node, "pods") - before == 1


async def test_two_containers_one_call_each(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,1000,0:;;{B},NVIDIA,2000,0:;", containers=("a", "idle", "b"))
    first = await node.kubelet.allocate([f"{A}-0"])
    assert first.container_responses[0].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert await node.phase("p1") == PHASE_ALLOCATING
    assert await node.work("p1") == f";;{B},NVIDIA,2000,0:;"
    assert await node.token_owner() == "p1"
    second = await node.kubelet.allocate([f"{B}-0"])
    assert second.container_responses[0].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
    assert second.container_responses[0].mounts[1].host_path.endswith("_b")
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.token_free()


async def test_two_containers_in_one_call_get_their_own_shares(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,1000,0:;{B},NVIDIA,2000,0:;", containers=("a", "b"))
    answer = await node.kubelet.allocate([f"{A}-0"], [f"{B}-0"])
    assert [each.envs["NVIDIA_VISIBLE_DEVICES"] for each in answer.container_responses] == [A, B]
    assert await node.work("p1") == ";;"
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_calls_in_parallel_are_served_in_turn(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,1000,0:;{A},NVIDIA,2000,0:;", containers=("a", "b"))
    answers = await asyncio.gather(node.kubelet.allocate([f"{A}-0"]), node.kubelet.allocate([f"{A}-1"]))
    limits = sorted(each.container_responses[0].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] for each in answers)
    assert limits == ["1000m", "2000m"]
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_the_tokens_pod_is_served_though_others_wait(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("other", f"{B},NVIDIA,2000,0:;")
    await node.bound_pod("p1", ONE)
    answer = await node.kubelet.allocate([f"{A}-0"])
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == A
    assert await node.work("other") == f"{B},NVIDIA,2000,0:;"
    assert await node.phase("other") == PHASE_ALLOCATING


async def test_without_a_token_the_only_waiting_pod_is_served(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE, token=False)
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_two_candidates_without_a_token_are_both_left_alone(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE, token=False)
    await node.bound_pod("p2", ONE, token=False)
    text = await refused(node.kubelet.allocate([f"{A}-0"]))
    assert "default/p1" in text
    assert "default/p2" in text
    for name in ("p1", "p2"):
        assert (await node.work(name), await node.phase(name)) == (ONE, PHASE_ALLOCATING)
    assert node.events.on_nodes[-1][1] == "AllocateRefused"


async def test_another_count_is_refused_and_harms_nobody(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    text = await refused(node.kubelet.allocate([f"{A}-0", f"{B}-0"]))
    assert "device number not matched" in text
    assert (await node.work("p1"), await node.phase("p1"), await node.token_owner()) == (ONE, PHASE_ALLOCATING, "p1")
    assert node.events.on_pods[-1][:2] == ("p1", "AllocateRefused")


async def test_a_pod_that_nobody_scheduled_is_told_what_to_look_at(node: Bench) -> None:
    await node.start_plugin()
    text = await refused(node.kubelet.allocate([f"{A}-0"]))
    assert "no binding pod found" in text
    assert "webhook" in text


async def test_foreign_ids_are_refused(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    assert "does not offer" in await refused(node.kubelet.allocate(["GPU-strange-0"]))
    assert await node.work("p1") == ONE


async def test_a_chosen_card_that_is_not_here_fails_the_pod_and_frees_the_token(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", "GPU-gone,NVIDIA,3000,30:;")
    text = await refused(node.kubelet.allocate([f"{A}-0"]))
    assert "GPU-gone" in text
    assert "Delete the pod" in text
    assert await node.phase("p1") == PHASE_FAILED
    await node.token_free()
    assert node.events.on_pods == [("p1", "AllocateFailed", text)]


async def test_a_token_of_another_pod_is_not_freed_by_a_failure(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", "GPU-gone,NVIDIA,3000,30:;", token=False)
    await node.set_token("somebody")
    await refused(node.kubelet.allocate([f"{A}-0"]))
    assert await node.phase("p1") == PHASE_FAILED
    assert await node.token_owner() == "somebody"


async def test_an_unhealthy_chosen_card_fails_the_pod(node: Bench) -> None:
    await node.start_plugin()
    node.profile.write_text(node.profile.read_text() + "faults: {lost: [0]}\n")
    await node.until(lambda: node.plugin.board.state.unhealthy, "the card is out of service")
    await node.bound_pod("p1", ONE)
    assert "out of service" in await refused(node.kubelet.allocate([f"{B}-0"]))


async def test_a_status_write_of_kubelet_in_between_does_not_matter(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=0.3, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the erase")
    await node.writer.patch_pod_annotations("default", "p1", {"other": "1"}, uid="", labels=None)
    await call
    done = await node.pod("p1")
    assert await node.phase("p1") == PHASE_SUCCESS
    assert done.annotations["other"] == "1"


async def test_a_slow_api_server_is_not_waited_for_longer_than_the_deadline(node: Bench) -> None:
    await node.start_plugin(blind=True, allocate_timeout_s=0.2)
    await node.bound_pod("p1", ONE)
    fault = node.api.faults.add(Fault("latency", verb="get", resource="nodes", seconds=5))
    assert "not done within 0.2 s" in await refused(node.kubelet.allocate([f"{A}-0"]))
    assert (await node.work("p1"), await node.phase("p1")) == (ONE, PHASE_ALLOCATING)
    node.api.faults.remove(fault)
    node.allocate_within(DEADLINE_S)
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_a_failing_erase_fails_the_pod(node: Bench) -> None:
    await node.start_plugin(blind=True)
    await node.bound_pod("p1", ONE)
    node.api.faults.add(Fault("internal-error", verb="patch", resource="pods", times=1))
    assert "the API server" in await refused(node.kubelet.allocate([f"{A}-0"]))
    assert await node.phase("p1") == PHASE_FAILED
    await node.token_free()


async def test_a_failing_release_does_not_fail_the_pod(node: Bench) -> None:
    await node.start_plugin(heartbeat="on-change")
    await node.bound_pod("p1", ONE)
    fault = node.api.faults.add(Fault("internal-error", verb="patch", resource="nodes"))
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.until(lambda: fault.hits, "the release")
    assert await node.token_owner() == "p1"
    node.api.faults.remove(fault)
    await node.token_free()


async def test_other_cards_booked_by_kubelet_are_counted_and_shown(node: Bench) -> None:
    plugin = await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.kubelet.allocate([f"{B}-0"])
    assert plugin.stats.cards_differ == 1
    assert node.events.on_pods[-1][1] == "PreferredCardsNotUsed"


async def test_preferred_allocation_names_the_schedulers_cards(node: Bench) -> None:
    await node.start_plugin()
    available = [f"{A}-1", f"{A}-2", f"{B}-0", f"{B}-1"]
    assert await node.kubelet.prefer(available, [], 1) == []
    await node.bound_pod("p1", f"{B},NVIDIA,1,0:{A},NVIDIA,1,0:;")
    assert await node.kubelet.prefer(available, [], 2) == [f"{B}-0", f"{A}-1"]
    assert await node.kubelet.prefer(available, [f"{B}-1"], 2) == [f"{B}-1", f"{A}-1"]
    assert await node.kubelet.prefer([f"{B}-0"], [], 2) == []
    assert await node.work("p1") == f"{B},NVIDIA,1,0:{A},NVIDIA,1,0:;"


@pytest.mark.parametrize("ids", [[], [""], [f"{A}-0", f"{A}-0"], [f"{A}-" + "9" * 5000], ["GPU-\u00e9-0"], [f"{A}::x"]])
async def test_b79_odd_ids_are_refused_and_leave_the_waiting_pod_alone(node: Bench, ids: list[str]) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    if ids in ([f"{A}-" + "9" * 5000], [f"{A}::x"]):
        # One id of a card that is here: kubelet's numbers say nothing of the card that the pod gets.
        assert (await node.kubelet.allocate(ids)).container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == A
        return
    await refused(node.kubelet.allocate(ids))
    assert await node.phase("p1") == PHASE_ALLOCATING
    assert await node.work("p1") == ONE


async def test_a_call_for_no_container_is_answered_with_none(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    assert not (await node.kubelet.allocate()).container_responses
    assert await node.phase("p1") == PHASE_ALLOCATING


async def test_of_many_calls_at_once_each_segment_is_served_once(node: Bench) -> None:
    """Twelve calls for six containers of two pods, one of which holds the token."""
    plugin = await node.start_plugin()
    names = tuple(f"c{number}" for number in range(3))
    await node.bound_pod("p1", "".join(f"{A},NVIDIA,{size},0:;" for size in (1, 2, 3)), containers=names)
    await node.bound_pod("p2", "".join(f"{B},NVIDIA,{size},0:;" for size in (4, 5, 6)), containers=names, token=False)
    calls = (node.kubelet.allocate([f"{card}-{number % 3}"]) for card in (A, B) for number in range(6))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    served = [each.container_responses[0].envs for each in answers if isinstance(each, pb.AllocateResponse)]
    assert sorted(envs["CUDA_DEVICE_MEMORY_LIMIT_0"] for envs in served) == [f"{size}m" for size in range(1, 7)]
    assert {(envs["NVIDIA_VISIBLE_DEVICES"], envs["CUDA_DEVICE_MEMORY_LIMIT_0"] < "4m") for envs in served} == {
        (A, True),
        (B, False),
    }
    refusals = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert {each.code() for each in refusals} == {grpc.StatusCode.FAILED_PRECONDITION}
    assert (plugin.stats.served, len(refusals)) == (6, 6)
    assert [await node.phase(name) for name in ("p1", "p2")] == [PHASE_SUCCESS] * 2
    await node.token_free()


async def test_a_slow_call_leaves_no_time_to_those_behind_it_and_harms_nobody(node: Bench) -> None:
    await node.start_plugin(blind=True, allocate_timeout_s=0.4)
    await node.bound_pod("p1", f"{A},NVIDIA,1,0:;{A},NVIDIA,2,0:;", containers=("a", "b"))
    fault = node.api.faults.add(Fault("latency", verb="get", resource="nodes", seconds=2))
    calls = [asyncio.create_task(node.kubelet.allocate([f"{A}-{number}"])) for number in range(2)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert fault.hits
    node.api.faults.clear()
    said = [str(each.details()) for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert len(said) == 2
    assert any("not done within 0.4 s" in each for each in said)
    assert all("not done within" in each or "earlier calls took all of" in each for each in said)
    assert (await node.phase("p1"), await node.token_owner()) == (PHASE_ALLOCATING, "p1")
    node.allocate_within(DEADLINE_S)
    for number in range(2):
        await node.kubelet.allocate([f"{A}-{number}"])
    assert await node.phase("p1") == PHASE_SUCCESS
