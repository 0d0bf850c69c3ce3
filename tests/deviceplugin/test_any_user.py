"""What a container finds on the host may be used by any user, whatever the plugin's own umask is (spec/node 2.10)."""

from __future__ import annotations

import os

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from tests.deviceplugin.bench import A, Bench


def mode_of(answer: pb.ContainerAllocateResponse, container_path: str) -> int:
    (mount,) = (each for each in answer.mounts if each.container_path == container_path)
    return os.stat(mount.host_path).st_mode & 0o777  # noqa: PTH116 - a path as kubelet has it


async def test_folder_region_lock_and_limits_are_open_as_far_as_they_must(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", f"{A},NVIDIA,3000,30:;")
    await node.seen("p1")
    # Only around the call: the rest of the test's files are not the plugin's.
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
        finally:
            os.umask(before)
        region = answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        assert mode_of(answer, f"{node.folder}/hook/vgpu") == 0o777
        assert mode_of(answer, region) == 0o666
        assert mode_of(answer, "/tmp/vgpulock") == 0o777
        assert mode_of(answer, "/usr/local/vgpu/vgpu.conf") == 0o644
        await node.token_free()
        await node.client.request("DELETE", "/api/v1/namespaces/default/pods/p1", params={"gracePeriodSeconds": "0"})
        await node.bound_pod("p1", f"{A},NVIDIA,3000,30:;")


async def test_the_folder_of_a_running_container_is_not_touched_by_the_next_pods_call(node: Bench) -> None:
    await node.start_plugin()
    pod = await node.bound_pod("p1", f"{A},NVIDIA,3000,30:;")
    await node.kubelet.allocate([f"{A}-0"])
    vgpu = node.folder / "hook/vgpu"
    held = [*(vgpu / "containers" / f"{pod.metadata.uid}_main").iterdir(), vgpu / "limits" / f"{pod.metadata.uid}_main"]
    inodes = [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in held]
    library = (vgpu / "libvgpu.so").stat().st_ino
    await node.token_free()
    await node.bound_pod("p2", f"{A},NVIDIA,1000,30:;")
    await node.kubelet.allocate([f"{A}-1"])
    assert len(held) == 2
    assert [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in held] == inodes
    assert (vgpu / "libvgpu.so").stat().st_ino == library
