"""CDI: what the files say, that Allocate never answers a name that they lack, and that they go with --cleanup."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from hami.core.container_edits import DeviceNode
from hami.deviceplugin.cdi_files import CdiFiles, remove_cdi_files
from hami.deviceplugin.host_devices import host_driver
from hami.deviceplugin.settings import PluginSettings
from hami.vendors.nvidia.cdi import CdiClass, CdiDevice, document, file_name
from tests.deviceplugin.bench import A, B, Bench
from tests.deviceplugin.calls import refused
from tests.deviceplugin.cdi_cards import CARDS, GPU_FILE

KIND = "k8s.device-plugin.nvidia.com/gpu"


def a_host(root: Path) -> Path:
    """A host with driver 580.65.06, two cards' nodes, GPUDirect copies, and a leftover of another version."""
    library = root / "usr/lib/x86_64-linux-gnu"
    for folder in (library / "vdpau", root / "usr/bin", root / "dev", root / "run/nvidia-persistenced"):
        folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-nvvm", "vdpau/libvdpau_nvidia"):
        (library / f"{name}.so.580.65.06").touch()
    (library / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    (library / "libc.so.6").touch()
    (library / "libnvidia-old.so.470.1").touch()
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/bin/nvidia-smi").touch()
    (root / "run/nvidia-persistenced/socket").touch()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia4", "nvidia5", "gdrdrv"):
        (root / "dev" / name).touch()
    return root


def settings(folder: Path, **changes: Any) -> PluginSettings:
    given = {"device_list_strategies": ("cdi-cri",), "cdi_hook_path": "/usr/bin/nvidia-ctk", **changes}
    root = folder / "root"
    return PluginSettings(
        "n1", cdi_root=folder / "cdi", driver_root=Path("/host"), driver_root_here=root, dev_root=root, **given
    )


def checked(text: bytes) -> dict[str, Any]:
    """The document, after the rules of the format that a runtime refuses a file for."""
    spec: dict[str, Any] = json.loads(text)
    assert spec["cdiVersion"] == "0.5.0"
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names)
    for device in spec["devices"]:
        edits = device["containerEdits"]
        assert edits.get("deviceNodes") or edits.get("mounts"), "an empty device is refused"
    return spec


def test_the_file_describes_cards_driver_and_hook(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    assert CdiFiles(settings(tmp_path)).ensure(CARDS) == ()
    path = tmp_path / "cdi" / GPU_FILE
    spec = checked(path.read_bytes())
    assert spec["kind"] == KIND
    assert path.stat().st_mode & 0o777 == 0o644
    assert [path] == list(path.parent.iterdir())
    dev = f"{tmp_path}/root/dev"
    nodes = {each["name"]: each["containerEdits"]["deviceNodes"] for each in spec["devices"]}
    first, second = ({"path": f"/dev/nvidia{n}", "hostPath": f"{dev}/nvidia{n}"} for n in (4, 5))
    assert nodes == {"GPU-a": [first], "0": [first], "GPU-b": [second], "1": [second], "all": [first, second]}
    common = spec["containerEdits"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    folder = "/usr/lib/x86_64-linux-gnu"
    assert [(mount["hostPath"], mount["containerPath"], mount["options"][0]) for mount in common["mounts"]] == [
        (f"/host{folder}/libcuda.so.580.65.06", f"{folder}/libcuda.so.580.65.06", "ro"),
        (f"/host{folder}/libnvidia-ml.so.580.65.06", f"{folder}/libnvidia-ml.so.580.65.06", "ro"),
        (f"/host{folder}/libnvidia-nvvm.so.580.65.06", f"{folder}/libnvidia-nvvm.so.580.65.06", "ro"),
        (
            f"/host{folder}/vdpau/libvdpau_nvidia.so.580.65.06",
            f"{folder}/vdpau/libvdpau_nvidia.so.580.65.06",
            "ro",
        ),
        ("/host/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", "ro"),
        ("/host/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", "rw"),
    ]
    (hook,) = common["hooks"]
    assert (hook["hookName"], hook["path"]) == ("createContainer", "/usr/bin/nvidia-ctk")
    assert hook["args"] == [
        "nvidia-ctk", "hook", "update-ldcache", "--folder", folder, "--folder", f"{folder}/vdpau",
    ]  # fmt: skip


def test_without_the_hook_tool_libraries_have_their_sonames(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    CdiFiles(settings(tmp_path, cdi_hook_path="")).ensure(CARDS)
    common = checked((tmp_path / "cdi" / GPU_FILE).read_bytes())["containerEdits"]
    assert "hooks" not in common
    mounted = {mount["containerPath"].rpartition("/")[2]: mount["hostPath"] for mount in common["mounts"]}
    assert mounted["libcuda.so.1"] == mounted["libcuda.so.580.65.06"]
    assert mounted["libnvidia-nvvm.so.4"] == mounted["libnvidia-nvvm.so.580.65.06"]


def test_the_newer_hook_tool_has_words_of_its_own(tmp_path: Path) -> None:
    driver = host_driver(a_host(tmp_path / "root"), Path("/"), tmp_path / "root", "/usr/bin/nvidia-cdi-hook")
    node = CdiDevice(("x",), (DeviceNode("/dev/a", "/dev/a"),))
    (hook,) = checked(document(CdiClass.GPU, [node], driver))["containerEdits"]["hooks"]
    assert hook["args"][:2] == ["nvidia-cdi-hook", "update-ldcache"]


def test_further_kinds_are_written_where_the_host_has_them(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    asked = tuple((f"NVIDIA_{name}", "enabled") for name in ("GDRCOPY", "GDS", "MOFED"))
    assert CdiFiles(settings(tmp_path, feature_envs=asked)).ensure(CARDS) == (CdiClass.GDRCOPY,)
    spec = checked((tmp_path / "cdi" / file_name(CdiClass.GDRCOPY)).read_bytes())
    assert [device["name"] for device in spec["devices"]] == ["all"]
    assert not (tmp_path / "cdi" / file_name(CdiClass.GDS)).exists()


def test_written_again_only_when_cards_or_file_change(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    files = CdiFiles(settings(tmp_path))
    path = tmp_path / "cdi" / GPU_FILE
    files.ensure(CARDS)
    first = path.stat().st_ino
    files.ensure(CARDS)
    assert path.stat().st_ino == first
    path.write_text("of somebody else")
    files.ensure(CARDS)
    assert checked(path.read_bytes())["kind"] == KIND
    path.unlink()
    files.ensure(CARDS)
    files.ensure(CARDS[:1])
    assert [device["name"] for device in checked(path.read_bytes())["devices"]] == ["GPU-a", "0", "all"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    path = tmp_path / "cdi" / GPU_FILE
    files = CdiFiles(settings(tmp_path))
    files.ensure(CARDS)
    done = threading.Event()

    def write() -> None:
        for turn in range(100):
            files.ensure(CARDS[: turn % 2 + 1])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        checked(path.read_bytes())
        reads += 1
    writer.join()
    assert reads > 0


def test_nothing_is_written_without_a_cdi_strategy(tmp_path: Path) -> None:
    assert CdiFiles(settings(tmp_path, device_list_strategies=("envvar", "volume-mounts"))).ensure(CARDS) == ()
    assert not (tmp_path / "cdi").exists()


def test_cleanup_takes_ours_and_leaves_others(tmp_path: Path) -> None:
    a_host(tmp_path / "root")
    CdiFiles(settings(tmp_path, feature_envs=(("NVIDIA_GDRCOPY", "enabled"),))).ensure(CARDS)
    other = tmp_path / "cdi/nvidia.yaml"
    other.touch()
    assert [path.name for path in remove_cdi_files(tmp_path / "cdi")] == [
        GPU_FILE,
        "k8s.device-plugin.nvidia.com-gdrcopy.json",
    ]
    assert list((tmp_path / "cdi").iterdir()) == [other]
    assert remove_cdi_files(tmp_path / "absent") == []


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
async def test_every_name_that_allocate_answers_is_in_the_file(node: Bench, strategy: str) -> None:
    a_host(node.folder / "root")
    gdrcopy = (("NVIDIA_GDRCOPY", "enabled"),)
    await node.start_plugin(device_list_strategies=(strategy,), feature_envs=gdrcopy)
    assert (node.folder / "cdi" / GPU_FILE).exists(), "before kubelet may ask"
    (node.folder / "cdi" / GPU_FILE).unlink()
    pod = await node.bound_pod("p1", f"{B},NVIDIA,2,0:{A},NVIDIA,1,0:;")
    answer = (await node.kubelet.allocate([f"{A}-0", f"{B}-0"])).container_responses[0]
    if strategy == "cdi-cri":
        names = [device.name for device in answer.cdi_devices]
        assert not answer.annotations
    else:
        ((key, value),) = answer.annotations.items()
        assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
        assert not answer.cdi_devices
        names = value.split(",")
    assert names == [f"{KIND}={B}", f"{KIND}={A}", "k8s.device-plugin.nvidia.com/gdrcopy=all"]
    for name in names:
        kind, _, device = name.partition("=")
        spec = checked((node.folder / "cdi" / f"{kind.replace('/', '-')}.json").read_bytes())
        assert device in [each["name"] for each in spec["devices"]]
    assert "NVIDIA_VISIBLE_DEVICES" not in answer.envs
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2m"
    assert (node.folder / f"hook/vgpu/limits/{pod.metadata.uid}_main").exists()


async def test_volume_mounts_name_the_cards_by_files(node: Bench) -> None:
    await node.start_plugin(device_list_strategies=("volume-mounts",))
    await node.bound_pod("p1", f"{B},NVIDIA,2,0:;")
    answer = (await node.kubelet.allocate([f"{B}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    mounted = [(mount.host_path, mount.container_path) for mount in answer.mounts]
    assert ("/dev/null", f"/var/run/nvidia-container-devices/{B}") in mounted


async def test_kubelet_is_not_told_of_us_before_the_files_are_there(node: Bench) -> None:
    (node.folder / "cdi").write_text("a file in the folder's place")
    await node.start_plugin(wait=False, device_list_strategies=("cdi-cri",))
    await node.until(lambda: node.plugin.board.state.cards, "cards")
    assert not node.kubelet.requests
    (node.folder / "cdi").unlink()
    await node.until(lambda: node.kubelet.requests, "the registration")
    assert (node.folder / "cdi" / GPU_FILE).exists()


async def test_a_folder_that_cannot_be_written_fails_the_pod_not_the_plugin(node: Bench) -> None:
    await node.start_plugin(device_list_strategies=("cdi-cri",))
    shutil.rmtree(node.folder / "cdi")
    (node.folder / "cdi").write_text("a file in the folder's place")
    await node.bound_pod("p1", f"{B},NVIDIA,2,0:;")
    assert "files on the node" in await refused(node.kubelet.allocate([f"{B}-0"]))
    assert await node.phase("p1") == "failed"
    await node.token_free()
    (node.folder / "cdi").unlink()
    await node.bound_pod("p2", f"{B},NVIDIA,2,0:;")
    await node.kubelet.allocate([f"{B}-0"])
    assert await node.phase("p2") == "success"
