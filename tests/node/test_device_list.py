"""Each way to tell the container runtime which cards a container gets (`--device-list-strategy`), on the real one.

With the CDI strategies the runtime adds devices, files, variables and hooks of our specification by itself.
"""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.pods import Workspace, allocation
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.node import driver
from tests.node.containerd import CDI_FOLDER
from tests.node.gpu import CONTROL_NODES, GpuNode, may_open, share_pod
from tests.node.tenants import LIMITS, Tenant, is_ready

CDI_STRATEGIES = ("cdi-annotations", "cdi-cri")
SPECIFICATION = CDI_FOLDER / "k8s.device-plugin.nvidia.com-gpu.json"
WRITTEN = "CDI specifications written"
VOLUMES = "/var/run/nvidia-container-devices"
REPLICAS = 8
PAUSE_S = 0.002
REFUSAL = "unresolvable CDI devices k8s.device-plugin.nvidia.com/gpu="

pytestmark = pytest.mark.usefixtures("usual_plugin_again")


@pytest.fixture
def host(tmp_path: Path) -> driver.HostDriver:
    """A driver on the host."""
    return driver.HostDriver(tmp_path / "driver")


@pytest.fixture
def cdi(gpus: GpuNode, host: driver.HostDriver) -> None:
    """The plugin with strategy cdi-cri."""
    gpus.replace_plugin(flags=flags("cdi-cri", host))


def flags(strategy: str, host: driver.HostDriver) -> list[str]:
    """The plugin's, for names of CDI devices."""
    return [
        f"--device-list-strategy={strategy}",
        f"--nvidia-driver-root={host.root}",
        f"--nvidia-cdi-hook-path={host.hook}",
    ]


def card_nodes(gpus: GpuNode, pod: Object) -> set[str]:
    """Names under /dev that a pod with one card should see: of its card, and those of the driver."""
    ((device,),) = allocation(pod)
    uuids = [card for kind in gpus.host.profile.cards for card in kind.uuids]
    return {*CONTROL_NODES, f"nvidia{uuids.index(device.uuid)}"}


def seen_nodes(gpus: GpuNode, space: Workspace, pod: str) -> set[str]:
    """Names under /dev that its container does see."""
    return {name for name in gpus.in_pod(space, pod, "ls", "/dev").split() if name.startswith("nvidia")}


def container_id(pod: Object) -> str:
    """Of its first container, as the runtime knows it."""
    return str(pod["status"]["containerStatuses"][0].get("containerID")).removeprefix("containerd://")


@pytest.mark.parametrize("strategy", CDI_STRATEGIES)
def test_the_runtime_adds_what_the_specification_says(
    gpus: GpuNode, space: Workspace, host: driver.HostDriver, strategy: str
) -> None:
    gpus.replace_plugin(flags=flags(strategy, host))
    space.add(share_pod("p", LIMITS))
    pod = space.wait_phase("p")
    env = gpus.environment(space, "p")
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == ("void", "3000m")
    assert gpus.in_pod(space, "p", "cat", "/etc/ld.so.preload") == "/usr/local/vgpu/libvgpu.so\n"
    assert seen_nodes(gpus, space, "p") == card_nodes(gpus, pod)
    assert may_open(gpus, space, "p")
    for file in (*driver.LIBRARIES, driver.PROGRAM):
        assert gpus.in_pod(space, "p", "cat", file) == f"{file} of the host\n"
    mounts = [line.split() for line in gpus.in_pod(space, "p", "cat", "/proc/self/mounts").splitlines()]
    options = {fields[1]: fields[3].split(",") for fields in mounts}
    assert all("ro" in options[file] for file in driver.LIBRARIES)
    calls = [call for call in host.hook_calls() if call.state["id"] == container_id(pod)]
    assert [call.words for call in calls] == [f"update-ldcache --folder {driver.LIBRARY_FOLDER}"]
    told = gpus.node.containerd.ctr("containers", "info", container_id(pod))
    assert named(told) == (strategy == "cdi-annotations", strategy == "cdi-cri")


def named(info: str) -> tuple[bool, bool]:
    """Whether kubelet handed the names on as annotation, and as a field of its own."""
    packed = json.loads(info)["Extensions"]["io.cri-containerd.container.metadata"]["value"]
    config = json.loads(base64.b64decode(packed))["Metadata"]["Config"]
    return any(key.startswith("cdi.k8s.io/") for key in config.get("annotations", {})), bool(config.get("CDI_devices"))


def test_volume_mounts_name_the_cards(gpus: GpuNode, space: Workspace) -> None:
    gpus.replace_plugin(flags=["--device-list-strategy=volume-mounts", "--pass-device-specs"])
    space.add(share_pod("p", {"gpu": 2, "gpumem": 3000}))
    (devices,) = allocation(space.wait_phase("p"))
    env = gpus.environment(space, "p")
    assert env["NVIDIA_VISIBLE_DEVICES"] == VOLUMES
    assert set(gpus.in_pod(space, "p", "ls", VOLUMES).split()) == {device.uuid for device in devices}
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "3000m"
    assert len(seen_nodes(gpus, space, "p")) == len(CONTROL_NODES) + len(devices)


@pytest.mark.usefixtures("cdi")
def test_a_removed_specification_is_there_again_for_the_next_pod(gpus: GpuNode, space: Workspace) -> None:
    SPECIFICATION.unlink()
    space.add(share_pod("p", LIMITS))
    pod = space.wait_phase("p")
    assert seen_nodes(gpus, space, "p") == card_nodes(gpus, pod)
    assert SPECIFICATION.exists()


@pytest.mark.usefixtures("cdi")
def test_without_the_specification_a_container_is_not_made_and_says_so(gpus: GpuNode, space: Workspace) -> None:
    """A container that starts anew asks no plugin; the frozen one writes the file again when it is thawed."""
    space.add(share_pod("p", LIMITS))
    pod = space.wait_phase("p")
    gpus.plugin.signal(signal.SIGSTOP)
    try:
        SPECIFICATION.unlink()
        gpus.node.containerd.ctr("tasks", "kill", "--signal", "SIGKILL", container_id(pod))
        space.wait_event("p", "Failed", REFUSAL)
    finally:
        gpus.plugin.signal(signal.SIGCONT)
    wait_until(lambda: container_id(space.pod("p")) != container_id(pod), 120, "p's container is made anew")
    wait_until(lambda: seen_nodes(gpus, space, "p") == card_nodes(gpus, pod), 120, "p has its card again")


@pytest.fixture
def replaced_again_and_again() -> Iterator[None]:
    """Somebody puts a copy in the specification's place all the time, each a file that the plugin did not write."""
    begun, ended = threading.Event(), threading.Event()
    part = SPECIFICATION.with_name(".copy")

    def replace() -> None:
        while not ended.wait(PAUSE_S):
            part.write_bytes(SPECIFICATION.read_bytes())
            part.replace(SPECIFICATION)
            begun.set()

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("cdi", "replaced_again_and_again")
def test_pods_start_while_the_specification_is_written_anew(gpus: GpuNode, space: Workspace) -> None:
    """Each Allocate finds another file than its own and writes it, while the runtime reads for other pods."""
    mark = gpus.plugin.mark()
    tenant = Tenant(gpus, space)
    tenant.create(REPLICAS)
    assert WRITTEN in gpus.plugin.said(since=mark)
    assert tenant.look().restarts == 0
    for pod in space.pods():
        name = pod["metadata"]["name"]
        assert [event for event in space.events(name) if "CDI" in event.message] == []
        if is_ready(pod):
            assert seen_nodes(gpus, space, name) == card_nodes(gpus, pod)
    tenant.check(visible="void")
    tenant.remove()
