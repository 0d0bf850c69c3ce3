"""Kubelet stand-in: registration, choice of devices, Allocate per container, failures, restarts, termination."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from hami.sim.cluster import SimCluster
from hami.sim.kubelet import ContainerStart
from hami.sim.kubelet.devices import DeviceError
from hami.sim.objects import Obj, dig
from tests.sim.toys import GPU, ToyPlugin, gpu_pod

NODE = "/api/v1/nodes/n1"
PLUGINS: list[ToyPlugin] = []
"""Started by the running test; stopped after it."""


def path(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}"


def phase(wanted: str) -> Callable[[Obj], bool]:
    return lambda pod: dig(pod, "status", "phase") == wanted


def offers(capacity: int, allocatable: int) -> Callable[[Obj], bool]:
    def holds(node: Obj) -> bool:
        status = node.get("status") or {}
        found = [status.get(part, {}).get(GPU) for part in ("capacity", "allocatable")]
        return found == [str(capacity), str(allocatable)]

    return holds


@pytest.fixture
async def cluster() -> AsyncIterator[SimCluster]:
    async with SimCluster() as running:
        await running.add_node("n1", labels={"gpu": "on"})
        yield running
        while PLUGINS:
            await PLUGINS.pop().stop()


async def start_plugin(cluster: SimCluster, ids: list[str], **options: Any) -> ToyPlugin:
    plugin = ToyPlugin(cluster.plugin_dir("n1"), ids, **options)
    PLUGINS.append(plugin)
    await plugin.start()
    await cluster.until(NODE, offers(len(ids), len(ids)))
    return plugin


async def on_node(cluster: SimCluster, pod: dict[str, Any]) -> None:
    """Bind by hand: these tests are about the node."""
    await cluster.apply({**pod, "spec": {**pod["spec"], "nodeName": "n1"}})


async def test_a_node_registers_with_lease_and_heartbeat(cluster: SimCluster) -> None:
    node = await cluster.until(NODE, lambda node: bool(node))
    assert node["metadata"]["labels"]["gpu"] == "on"
    assert {one["type"]: one["status"] for one in node["status"]["conditions"]}["Ready"] == "True"
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
    assert (await cluster.until(lease, bool))["spec"]["holderIdentity"] == "n1"


async def test_allocatable_follows_health_and_the_plugins_life(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b", "c"])
    await plugin.set_unhealthy("b")
    await cluster.until(NODE, offers(3, 2))
    await plugin.stop()
    await cluster.until(NODE, offers(3, 0))
    await start_plugin(cluster, ["a", "b"])


@pytest.mark.parametrize(
    ("version", "resource", "endpoint", "words"),
    [
        ("v1alpha", GPU, "toy.sock", "is not a supported device plugin API version"),
        ("v1beta1", "gpu", "toy.sock", "the ResourceName gpu is invalid"),
    ],
)
async def test_bad_registrations(cluster: SimCluster, version: str, resource: str, endpoint: str, words: str) -> None:
    async with grpc.aio.insecure_channel(f"unix:{cluster.plugin_dir('n1') / 'kubelet.sock'}") as channel:
        request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pb_grpc.RegistrationStub(channel).Register(request)  # type: ignore[no-untyped-call]
    assert words in str(caught.value.details())


async def test_allocate_runs_and_is_recorded(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b", "c"])
    await on_node(cluster, gpu_pod("p", 2))
    running = await cluster.until(path("p"), phase("Running"))
    assert {one["type"]: one["status"] for one in running["status"]["conditions"]}["Ready"] == "True"
    [allocation] = cluster.kubelets["n1"].allocations
    assert (allocation.pod, allocation.container, allocation.resource) == ("p", "main", GPU)
    assert sorted(allocation.device_ids) == sorted(plugin.allocated[0])
    assert allocation.env == {"TOY_DEVICES": ",".join(plugin.allocated[0])}
    assert [(one.container_path, one.host_path, one.read_only) for one in allocation.mounts] == [
        ("/toy", "/host/toy", True)
    ]
    checkpoint = msgspec.json.decode((cluster.plugin_dir("n1") / "kubelet_internal_checkpoint").read_bytes())
    [entry] = checkpoint["Data"]["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"]) == (running["metadata"]["uid"], "main")
    assert sorted(entry["DeviceIDs"]["-1"]) == sorted(allocation.device_ids)
    assert pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"])).envs == allocation.env
    assert checkpoint["Data"]["RegisteredDevices"] == {GPU: ["a", "b", "c"]}


async def test_the_plugins_preference_counts(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, [f"d{index}" for index in range(10)], prefers=["d7", "d3"])
    await on_node(cluster, gpu_pod("p", 2))
    await cluster.until(path("p"), phase("Running"))
    assert plugin.allocated == [["d7", "d3"]]


async def test_init_containers_come_first_and_their_devices_are_used_again(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b", "c"], prefers=["c", "b", "a"])
    pod = gpu_pod("p", 1)
    limits = {"limits": {GPU: 2}}
    pod["spec"]["initContainers"] = [{"name": "prepare", "image": "i", "resources": limits}]
    await on_node(cluster, pod)
    done = await cluster.until(path("p"), phase("Running"))
    first, second = plugin.allocated
    assert len(first) == 2
    assert set(second) < set(first)
    assert done["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    await on_node(cluster, gpu_pod("q", 2))
    rejected = await cluster.until(path("q"), phase("Failed"))
    assert "Requested: 2, Available: 1" in rejected["status"]["message"]


async def test_a_sidecars_devices_are_not_used_again(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b"])
    pod = gpu_pod("p", 1)
    pod["spec"]["initContainers"] = [
        {"name": "side", "image": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: 1}}}
    ]
    await on_node(cluster, pod)
    await cluster.until(path("p"), phase("Running"))
    assert sorted(one for ids in plugin.allocated for one in ids) == ["a", "b"]


async def test_a_failed_allocate_fails_the_pod_in_kubelets_words(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a"])
    plugin.error = "no binding pod found on node n1"
    await on_node(cluster, gpu_pod("p"))
    failed = await cluster.until(path("p"), phase("Failed"))
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    assert failed["status"]["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = no binding pod found on node n1, "
        "which is unexpected"
    )
    plugin.error = ""
    await on_node(cluster, gpu_pod("q"))
    await cluster.until(path("q"), phase("Running"))


async def test_pre_start_is_called_where_it_is_required(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a"], pre_start=True)
    await on_node(cluster, gpu_pod("p"))
    await cluster.until(path("p"), phase("Running"))
    assert plugin.pre_started == plugin.allocated == [["a"]]


@pytest.mark.parametrize("required", [False, True])
async def test_a_plugin_that_goes_after_allocate_is_missed_only_where_it_wants_pre_start(
    cluster: SimCluster, required: bool
) -> None:
    """kubelet keeps the endpoint of a plugin that is gone for five minutes, with its options."""
    plugin = await start_plugin(cluster, ["a"], pre_start=required)
    await on_node(cluster, gpu_pod("p"))
    pod = await cluster.until(path("p"), phase("Running"))
    await plugin.stop()
    await cluster.until(NODE, offers(1, 0))
    start = cluster.kubelets["n1"].devices.pre_start(pod["metadata"]["uid"], pod["spec"]["containers"][0]["name"])
    if required:
        with pytest.raises(DeviceError, match="endpoint not found"):
            await start
    else:
        await start


async def test_devices_are_free_again_when_a_pod_ends(cluster: SimCluster) -> None:
    await start_plugin(cluster, ["a"])
    pod = gpu_pod("p")
    pod["metadata"]["annotations"] = {"sim.hami.io/run-seconds": "0.1"}
    await on_node(cluster, pod)
    await cluster.until(path("p"), phase("Succeeded"))
    await on_node(cluster, gpu_pod("q"))
    await cluster.until(path("q"), phase("Running"))


async def test_the_exit_code_decides_the_phase(cluster: SimCluster) -> None:
    pod = gpu_pod("p")
    del pod["spec"]["containers"][0]["resources"]
    pod["metadata"]["annotations"] = {"sim.hami.io/run-seconds": "0", "sim.hami.io/exit-code": "3"}
    await on_node(cluster, pod)
    failed = await cluster.until(path("p"), phase("Failed"))
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


async def test_a_deleted_pod_ends_within_its_grace_and_frees_its_devices(cluster: SimCluster) -> None:
    await start_plugin(cluster, ["a"])
    pod = gpu_pod("p", terminationGracePeriodSeconds=1)
    pod["metadata"]["annotations"] = {"sim.hami.io/stop-seconds": "600"}
    await on_node(cluster, pod)
    await cluster.until(path("p"), phase("Running"))
    code_free = {"gracePeriodSeconds": 1}
    await cluster.client.request("DELETE", path("p"), code_free)
    await cluster.until(path("p"), lambda pod: not pod, timeout_s=120)
    await on_node(cluster, gpu_pod("p"))
    await cluster.until(path("p"), phase("Running"))


async def test_allocations_outlive_the_plugin_and_the_device_manager(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b"])
    await on_node(cluster, gpu_pod("p"))
    await cluster.until(path("p"), phase("Running"))
    kubelet = cluster.kubelets["n1"]
    await kubelet.restart_device_manager()
    assert not (cluster.plugin_dir("n1") / "toy.sock").exists()
    await plugin.stop()
    again = await start_plugin(cluster, ["a", "b"])
    await on_node(cluster, gpu_pod("q", 2))
    assert "Requested: 2, Available: 1" in (await cluster.until(path("q"), phase("Failed")))["status"]["message"]
    await on_node(cluster, gpu_pod("r"))
    await cluster.until(path("r"), phase("Running"))
    assert set(again.allocated[0]).isdisjoint(plugin.allocated[0])


async def test_after_a_reboot_pods_fail_where_their_plugin_is_not_back_yet(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, ["a", "b", "c"])
    for name in ("p", "q"):
        await on_node(cluster, gpu_pod(name))
        await cluster.until(path(name), phase("Running"))
    await cluster.stop_node("n1")
    await cluster.add_node("n1")
    await plugin.stop()
    again = await start_plugin(cluster, ["a", "b", "c"])
    for name in ("p", "q"):
        failed = await cluster.until(path(name), phase("Failed"))
        assert "no healthy devices present; cannot allocate unhealthy devices" in failed["status"]["message"]
    await on_node(cluster, gpu_pod("r", 3))
    await cluster.until(path("r"), phase("Running"))
    assert sorted(again.allocated[0]) == ["a", "b", "c"]


async def test_pods_are_admitted_one_at_a_time(cluster: SimCluster) -> None:
    plugin = await start_plugin(cluster, [f"d{index}" for index in range(20)])
    for index in range(20):
        await on_node(cluster, gpu_pod(f"p{index}"))
    for index in range(20):
        await cluster.until(path(f"p{index}"), phase("Running"))
    assert [one.pod for one in cluster.kubelets["n1"].allocations] == [f"p{index}" for index in range(20)]
    assert sorted(one for ids in plugin.allocated for one in ids) == sorted(plugin.ids)


async def test_too_little_of_the_machines_own_resources(cluster: SimCluster) -> None:
    pod = gpu_pod("p")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100"}}
    await on_node(cluster, pod)
    failed = await cluster.until(path("p"), phase("Failed"))
    assert failed["status"]["reason"] == "OutOfcpu"


async def test_a_runner_gets_exactly_what_the_plugin_answered() -> None:
    class Recorder:
        starts: list[ContainerStart]

        def __init__(self) -> None:
            self.starts = []

        async def run(self, start: ContainerStart) -> int:
            self.starts.append(start)
            return 0

    runner = Recorder()
    async with SimCluster() as cluster:
        await cluster.add_node("n1", runner=runner)
        plugin = await start_plugin(cluster, ["a"])
        pod = gpu_pod("p")
        pod["spec"]["containers"][0]["env"] = [{"name": "TOY_DEVICES", "value": "mine"}, {"name": "X", "value": "1"}]
        await on_node(cluster, pod)
        await cluster.until(path("p"), phase("Succeeded"))
        [start] = runner.starts
        assert start.allocations[0].env == {"TOY_DEVICES": "a"}
        assert start.env == {"TOY_DEVICES": "mine", "X": "1"}
        await plugin.stop()
