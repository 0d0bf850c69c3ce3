"""A pod that asks for a share, on the real kubelet: what it is started with, and what kubelet says about it."""

from __future__ import annotations

import re

from tests.cluster.pods import Workspace, allocation
from tests.node.gpu import CONTROL_NODES, GpuNode, environment_of, share_pod


def test_container_starts_with_what_was_promised(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("p", {"gpu": 1, "gpumem": 3000, "gpucores": 30}))
    pod = space.wait_phase("p")
    ((device,),) = allocation(pod)
    kubectl = gpus.node.plane.kubectl
    env = environment_of(kubectl("logs", "p", "-n", space.name).splitlines())
    assert env["NVIDIA_VISIBLE_DEVICES"] == device.uuid
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    region = env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert re.fullmatch(r"/usr/local/vgpu/[0-9a-f-]{36}\.cache", region)
    exec_in = ("exec", "p", "-n", space.name, "--")
    assert kubectl(*exec_in, "cat", "/etc/ld.so.preload") == "/usr/local/vgpu/libvgpu.so\n"
    mounts = {line.split()[1] for line in kubectl(*exec_in, "cat", "/proc/self/mounts").splitlines()}
    wanted = {"/usr/local/vgpu", "/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock", "/etc/ld.so.preload", region}
    assert wanted <= mounts
    minor = [card for kind in gpus.host.profile.cards for card in kind.uuids].index(device.uuid)
    nodes = kubectl(*exec_in, "ls", "/dev").split()
    assert {name for name in nodes if name.startswith("nvidia")} == {*CONTROL_NODES, f"nvidia{minor}"}
