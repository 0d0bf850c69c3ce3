"""What a container with shares gets: variables, mounts, device files (spec/node 2.9, 2.10)."""

import pytest

from hami.core.container_edits import ContainerEdits, DeviceNode, Mount
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.edits import DeviceListStrategy, EditContext, container_edits, limits_text
from tests.core.build import share

HOOK = "/usr/local"
CONTAINER_DIR = f"{HOOK}/vgpu/containers/uid_main"
SHARES = (share("GPU-a", 3000, 30), share("GPU-b", 5000, 0))
VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b")
LIMITS = (
    ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
    ("CUDA_DEVICE_MEMORY_LIMIT_1", "5000m"),
    ("CUDA_DEVICE_SM_LIMIT", "30"),
    ("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{HOOK}/vgpu/u4.cache"),
)
LIBRARY = (
    Mount(f"{HOOK}/vgpu/libvgpu.so", f"{HOOK}/vgpu/libvgpu.so", read_only=True),
    Mount(f"{HOOK}/vgpu", CONTAINER_DIR, read_only=False),
    Mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),
)
PRELOAD = Mount("/etc/ld.so.preload", f"{HOOK}/vgpu/ld.so.preload", read_only=True)
NODES = (DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"), DeviceNode("/dev/nvidia0", "/driver/dev/nvidia0"))
CDI_NAMES = ("k8s.device-plugin.nvidia.com/gpu=GPU-a", "k8s.device-plugin.nvidia.com/gpu=GPU-b")


def edits(config: NvidiaConfig | None = None, **context: object) -> ContainerEdits:
    values: dict[str, object] = {
        "hook_path": HOOK, "lock_dir": "/tmp/vgpulock", "container_dir": CONTAINER_DIR, "cache_name": "u4", **context
    }  # fmt: skip
    return container_edits(SHARES, EditContext(**values), config or NvidiaConfig())  # type: ignore[arg-type]


def test_the_usual_container() -> None:
    assert edits() == ContainerEdits(envs=(VISIBLE, *LIMITS), mounts=(*LIBRARY, PRELOAD))


@pytest.mark.parametrize(
    ("context", "config", "added"),
    [
        ({"memory_scaling": 1.8}, {}, [("CUDA_OVERSUBSCRIBE", "true")]),
        ({"log_level": "3"}, {}, [("LIBCUDA_LOG_LEVEL", "3")]),
        ({}, {"disable_core_limit": True}, [("GPU_CORE_UTILIZATION_POLICY", "disable")]),
    ],
)
def test_variables_by_condition(
    context: dict[str, object], config: dict[str, bool], added: list[tuple[str, str]]
) -> None:
    assert edits(NvidiaConfig(**config), **context).envs == (VISIBLE, *LIMITS, *added)  # type: ignore[arg-type]


def test_mounts_by_condition() -> None:
    made = edits(plugin_version="v2.10.0", has_versioned_library=True, has_license=True, disable_control=True)
    assert made.mounts == (
        Mount(f"{HOOK}/vgpu/libvgpu.so", f"{HOOK}/vgpu/libvgpu.so.v2.10.0", read_only=True),
        *LIBRARY[1:],
        Mount("/tmp/license", f"{HOOK}/vgpu/license", read_only=True),
        Mount("/usr/bin/vgpuvalidator", f"{HOOK}/vgpu/vgpuvalidator", read_only=True),
    )
    assert made.envs == edits().envs


def test_the_limits_as_a_file_say_what_the_variables_say_and_bound_unlisted_cards() -> None:
    context = EditContext(
        hook_path="/host", container_hook_path=HOOK, lock_dir="/l", container_dir="/c", cache_name="u4"
    )
    lines = [f"{name}={value}" for name, value in (VISIBLE, ("CUDA_DEVICE_MEMORY_LIMIT", "3000m"), *LIMITS)]
    assert limits_text(SHARES, context, NvidiaConfig()).splitlines() == lines
    made = edits(limits_file="/host/limits")
    assert made.mounts[-1] == Mount("/usr/local/vgpu/vgpu.conf", "/host/limits", read_only=True)


def test_mig_containers_get_the_device_list_only() -> None:
    made = edits(mode="mig", visible_ids=("MIG-1", "MIG-1", "MIG-2"), pass_device_specs=True, device_nodes=NODES)
    assert made == ContainerEdits(envs=(("NVIDIA_VISIBLE_DEVICES", "MIG-1,MIG-2"),), devices=NODES)


def test_cards_that_kubelet_chose_are_shown_with_the_shares_limits() -> None:
    made = edits(visible_ids=("GPU-x", "GPU-y"))
    assert made.envs == (("NVIDIA_VISIBLE_DEVICES", "GPU-x,GPU-y"), *LIMITS)


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (["volume-mounts"], ContainerEdits(
            envs=(("NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"), ("NVIDIA_GDRCOPY", "enabled")),
            mounts=(Mount("/var/run/nvidia-container-devices/GPU-a", "/dev/null", read_only=False),
                    Mount("/var/run/nvidia-container-devices/GPU-b", "/dev/null", read_only=False)),
            devices=NODES,
        )),
        (["cdi-cri"], ContainerEdits(cdi_devices=CDI_NAMES)),
        (["cdi-annotations"], ContainerEdits(
            annotations=(("cdi.k8s.io/nvidia-device-plugin_u4", ",".join(CDI_NAMES)),)
        )),
        (["cdi-cri", "envvar"], ContainerEdits(
            envs=(VISIBLE, ("NVIDIA_GDRCOPY", "enabled")), devices=NODES, cdi_devices=CDI_NAMES
        )),
    ],
)  # fmt: skip
def test_device_list_strategies(strategies: list[str], expected: ContainerEdits) -> None:
    made = edits(
        mode="mig",
        device_list_strategies=tuple(map(DeviceListStrategy, strategies)),
        pass_device_specs=True,
        device_nodes=NODES,
        feature_envs=(("NVIDIA_GDRCOPY", "enabled"),),
    )
    assert made == expected


def test_a_container_without_shares_has_no_core_limit() -> None:
    context = EditContext(HOOK, "/tmp/vgpulock", CONTAINER_DIR, "u4")
    assert ("CUDA_DEVICE_SM_LIMIT", "0") in container_edits((), context, NvidiaConfig()).envs
