"""Admission: what is refused, with which words, and what only warns (spec/scheduler 3.1, 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami.core.admission import AdmissionSettings, review
from hami.core.device_type import Refusal
from hami.core.objects import Pod
from hami.vendors.nvidia.config import NvidiaConfig
from tests.core.build import REGISTRY, gpu, pod
from tests.core.reviews import NAME, SETTINGS, decide, patched, with_spec

PRIVILEGED = {"securityContext": {"privileged": True}}
LIFTING = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_1",
           "LD_PRELOAD", "LD_AUDIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE")  # fmt: skip


@pytest.mark.parametrize(
    ("subject", "code", "message"),
    [
        (pod(), 403, "pod has no containers"),
        (pod(PRIVILEGED, gpu(mem=5)), 403, "container c0 is privileged"),
        (pod(gpu(mem=5), inits=(PRIVILEGED,)), 403, "container i0 is privileged"),
        (
            with_spec(pod(gpu(mem=5)), node_name="n1"),
            403,
            "pod has node assigned (n1): leave spec.nodeName out, HAMi's scheduler chooses node and cards together; "
            "a nodeSelector narrows it",
        ),
        (
            pod(gpu(percent=101)),
            500,
            "invalid nvidia.com/gpumem-percentage value 101 in container c0: must be an integer between 0 and 100",
        ),
        (pod({"limits": {"nvidia.com/gpumem": "16Gi"}}), 403, "write 16384"),
        (pod(gpu(cores=150)), 403, "between 0 and 100"),
        (pod({"limits": {"nvidia.com/priority": "-1"}}), 403, "invalid nvidia.com/priority value -1"),
        *((pod({**gpu(mem=5), "env": [{"name": name}]}), 403, f"container c0 sets {name}") for name in LIFTING),
        (pod({**gpu(mem=5), "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]}), 403, "CUDA_DISABLE_CONTROL"),
        (
            pod({**gpu(mem=5), "env": [{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"fieldRef": {}}}]}),
            403,
            "CUDA_DISABLE_CONTROL",
        ),
        (
            pod(gpu(mem=5), annotations={"hami.io/gpu-scheduler-policy": "binpak"}),
            403,
            "annotation hami.io/gpu-scheduler-policy: unknown policy 'binpak': did you mean binpack? "
            "allowed are binpack, mutex, numa, spread, topology-aware",
        ),
        (
            pod(gpu(mem=5), annotations={"hami.io/node-scheduler-policy": "xyz"}),
            403,
            "annotation hami.io/node-scheduler-policy: unknown policy 'xyz': allowed are binpack, spread",
        ),
        (pod(gpu(mem=5), annotations={"hami.io/device-scoring-weights": "slot=1"}), 403, "device-scoring-weights"),
        (pod(gpu(mem=5), annotations={"nvidia.com/numa-bind": "yes"}), 403, "must be true or false"),
        (pod(gpu(mem=5), annotations={"nvidia.com/vgpu-mode": "time"}), 403, "hami-core, mig, mps"),
    ],
)
def test_refusals(subject: Pod, code: int, message: str) -> None:
    admission = decide(subject)
    assert (admission.allowed, admission.code, admission.patch) == (False, code, ())
    assert message in admission.message


def test_b16_without_a_default_count_the_pod_is_refused() -> None:
    admission = decide(pod({"limits": {"nvidia.com/gpumem": 5}}), NvidiaConfig(default_gpu_num=0))
    assert admission.message == "container c0 asks for nvidia.com/gpumem without nvidia.com/gpu: add nvidia.com/gpu"


def test_b07_privileged_counts_before_node_and_our_own_refusals() -> None:
    subject = with_spec(pod({**PRIVILEGED, **gpu(mem=5), "env": [{"name": "LD_PRELOAD"}]}), node_name="n1")
    assert decide(subject).message == "container c0 is privileged"


@pytest.mark.parametrize(
    "key",
    ["vgpu-node", "vgpu-time", "vgpu-devices-to-allocate", "vgpu-devices-allocated", "bind-phase", "bind-time",
     "vgpu-mig-allocations"],
)  # fmt: skip
@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "volcano"])
@pytest.mark.parametrize("container", [gpu(mem=5), {}])
def test_b08_forged_keys_are_refused_for_every_pod(key: str, scheduler: str, container: Mapping[str, object]) -> None:
    subject = with_spec(pod(container, annotations={f"hami.io/{key}": ""}), scheduler_name=scheduler)
    admission = decide(subject)
    assert (admission.allowed, admission.code) == (False, 403)
    assert f"annotation hami.io/{key} is written by HAMi's scheduler only" in admission.message


@pytest.mark.parametrize("value", ["false", "0", "", "yes"])
def test_an_opt_out_that_is_not_true_is_harmless(value: str) -> None:
    assert decide(pod({**gpu(mem=5), "env": [{"name": "CUDA_DISABLE_CONTROL", "value": value}]})).allowed


def test_the_opt_out_may_be_allowed() -> None:
    subject = pod({**gpu(mem=5), "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]})
    assert decide(subject, options=AdmissionSettings(allow_disable_control=True)).allowed


def test_variables_of_containers_without_devices_are_their_own_business() -> None:
    assert decide(pod({"env": [{"name": "LD_PRELOAD"}]}, gpu(mem=5))).allowed


def test_b14_decimal_suffixes_follow_kubernetes() -> None:
    for size in ("5k", "3e3", "1M", "3000m"):
        assert decide(pod(gpu(mem=size))).allowed


@pytest.mark.parametrize("place", ["app", "init"])
@pytest.mark.parametrize(
    ("wish", "allowed"),
    [
        *((("B10", {"cores": cores}), False) for cores in (150, 101, -1, "12.5")),
        *((("B10", {"cores": cores, "mem": 1}), True) for cores in (0, 50, 100)),
        *((("B11", {"percent": percent}), False) for percent in (101, 150, -5, "500m", "12.5", "")),
        *((("B11", {"percent": percent}), True) for percent in (1, 50, 100)),
        *((("B13", {"mem": mem}), False) for mem in ("16Gi", "8Gi", "3Gi", 2147483648, "18014398509481985", "1G")),
        *((("B14", {"mem": mem}), True) for mem in ("5k", "3e3", "1M", "3000m", 2147483647)),
        *((("B14", {"mem": mem}), False) for mem in ("2.5", "", "x")),
    ],
)
def test_b10_b11_b13_b14_numbers(wish: tuple[str, dict[str, object]], allowed: bool, place: str) -> None:
    _, numbers = wish
    container = gpu(**numbers)  # type: ignore[arg-type]
    subject = pod(container) if place == "app" else pod({}, inits=(container,))
    admission = decide(subject)
    assert admission.allowed is allowed, admission.message
    for name, written in numbers.items():
        resource = {"mem": "gpumem", "cores": "gpucores", "percent": "gpumem-percentage"}[name]
        assert allowed or f"nvidia.com/{resource} value {written}" in admission.message
        assert not any(op.path.endswith(resource) for op in admission.patch if not allowed)


def test_b13_a_memory_factor_changes_the_unit() -> None:
    config = NvidiaConfig(memory_factor=1024)
    assert decide(pod(gpu(mem=16)), config).allowed
    for size in ("16Gi", 2097152, "18014398509481985"):
        assert "counts units of 1024 MiB" in decide(pod(gpu(mem=size)), config).message


def test_warn_only_turns_our_own_refusals_into_warnings() -> None:
    options = AdmissionSettings(warn_only=True)
    annotations = {"hami.io/vgpu-node": "n1", "hami.io/gpu-scheduler-policy": "binpak", "nvidia.com/numa-bind": "yes"}
    subject = pod({**gpu(mem="16Gi"), "env": [{"name": "LD_PRELOAD"}]}, annotations=annotations)
    admission = decide(subject, options=options)
    assert admission.allowed
    assert len(admission.warnings) == 5
    assert patched(subject, admission)["spec"]["schedulerName"] == NAME
    assert not decide(pod(gpu(percent=101)), options=options).allowed
    assert not decide(pod(PRIVILEGED, gpu()), options=options).allowed


def test_the_quota_is_asked_for_the_namespace_of_the_review() -> None:
    asked: list[str] = []

    def advice(namespace: str, subject: Pod) -> Refusal | None:
        asked.append(namespace)
        return Refusal("exceeding resource quota")

    assert review(pod(gpu()), "team-a", REGISTRY, SETTINGS, advice).message == "exceeding resource quota"
    assert review(pod({}), "team-a", REGISTRY, SETTINGS, advice).allowed
    assert asked == ["team-a"]
