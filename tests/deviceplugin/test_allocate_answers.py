"""What a container is answered where flags, device configuration or the container say it otherwise than by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from tests.deviceplugin.bench import A, B, Bench
from tests.deviceplugin.calls import ONE


@pytest.mark.parametrize(("value", "preloaded"), [("true", False), ("1", False), ("yes", True), ("", True)])
async def test_opting_out_of_the_limits_where_it_is_allowed(node: Bench, value: str, preloaded: bool) -> None:
    await node.start_plugin(allow_disable_control=True)
    await node.bound_pod("p1", ONE, env=[{"name": "CUDA_DISABLE_CONTROL", "value": value}])
    assert ("/etc/ld.so.preload" in mounted(await node.kubelet.allocate([f"{A}-0"]))) is preloaded


async def test_opting_out_has_no_effect_where_it_is_not_allowed(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE, env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])
    assert "/etc/ld.so.preload" in mounted(await node.kubelet.allocate([f"{A}-0"]))


async def test_containers_may_know_the_hook_path_by_another_name(node: Bench) -> None:
    node.install_shim(Path("/opt/hami"))
    await node.start_plugin(container_hook_path=Path("/opt/hami"))
    await node.bound_pod("p1", ONE)
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith("/opt/hami/vgpu/")
    assert [mount.container_path for mount in answer.mounts[:2]] == ["/opt/hami/vgpu/libvgpu.so", "/opt/hami/vgpu"]
    assert answer.mounts[0].host_path == f"{node.folder}/hook/vgpu/libvgpu.so"


def mounted(answer: pb.AllocateResponse) -> list[str]:
    return [mount.container_path for mount in answer.container_responses[0].mounts]


async def test_device_specs_and_cdi_names(node: Bench) -> None:
    dev = node.folder / "root/dev"
    dev.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia1"):
        (dev / name).touch()
    await node.start_plugin(
        pass_device_specs=True, dev_root=node.folder / "root", device_list_strategies=("envvar", "cdi-cri")
    )
    await node.bound_pod("p1", f"{B},NVIDIA,3000,30:;")
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert [device.container_path for device in answer.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
    ]
    assert [device.name for device in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={B}"]


async def test_cards_by_index_keep_the_order_of_the_limits(node: Bench) -> None:
    await node.start_plugin(device_id_strategy="index", feature_envs=(("NVIDIA_GDRCOPY", "enabled"),))
    await node.bound_pod("p1", f"{B},NVIDIA,2,0:{A},NVIDIA,1,0:;")
    envs = (await node.kubelet.allocate([f"{A}-0", f"{B}-0"])).container_responses[0].envs
    assert envs["NVIDIA_VISIBLE_DEVICES"] == "1,0"
    assert (envs["CUDA_DEVICE_MEMORY_LIMIT_0"], envs["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("2m", "1m")
    assert envs["NVIDIA_GDRCOPY"] == "enabled"
