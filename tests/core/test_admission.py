"""Admission: upstream's order and words, our refusals, minimal idempotent patches (spec/scheduler 3.1, 3.2)."""

from collections.abc import Mapping
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.admission import Admission, AdmissionSettings, review
from hami.core.device_type import Refusal
from hami.core.objects import Pod
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import REGISTRY, gpu, pod

SETTINGS = AdmissionSettings()
NAME = "hami-scheduler"


def decide(subject: Pod, config: NvidiaConfig | None = None, options: AdmissionSettings = SETTINGS) -> Admission:
    return review(subject, "default", (Nvidia(config),) if config else REGISTRY, options)


def patched(subject: Pod, admission: Admission) -> dict[str, Any]:
    """The pod after the patch, as JSON."""
    ops = [{"op": op.op, "path": op.path, "value": op.value} for op in admission.patch]
    result: dict[str, Any] = jsonpatch.apply_patch(msgspec.json.decode(msgspec.json.encode(subject)), ops)
    return result


def with_spec(subject: Pod, **fields: object) -> Pod:
    return msgspec.structs.replace(subject, spec=msgspec.structs.replace(subject.spec, **fields))


def resources_of(limits: Mapping[str, str]) -> dict[str, dict[str, str]]:
    full = {f"nvidia.com/{name}": value for name, value in limits.items()}
    return {"limits": full, "requests": full}


# --- what is changed ---


@pytest.mark.parametrize(
    ("limits", "added"),
    [
        ({"gpu": 1, "gpumem": 3000}, {}),
        ({"gpu": 1}, {"gpucores": "100"}),
        ({"gpu": 1, "gpumem-percentage": 100}, {"gpucores": "100"}),
        ({"gpu": 1, "gpumem-percentage": 99}, {}),
        ({"gpu": 1, "gpumem-percentage": 0}, {}),
        ({"gpu": 1, "gpumem-percentage": 100, "gpumem": 5}, {"gpucores": "100"}),
        ({"gpu": 1, "gpucores": 30}, {}),
        ({"gpumem": 7000, "gpucores": 30}, {"gpu": "1"}),
        ({"gpucores": 30}, {"gpu": "1"}),
        ({"gpumem-percentage": 50}, {"gpu": "1"}),
        ({"gpumem-percentage": 100}, {"gpu": "1", "gpucores": "100"}),
    ],
)
def test_missing_resources_are_set_in_limits_and_requests(limits: dict[str, object], added: dict[str, str]) -> None:
    subject = pod({"limits": {f"nvidia.com/{name}": value for name, value in limits.items()}})
    after = patched(subject, decide(subject))
    before = msgspec.to_builtins(subject)["spec"]["containers"][0]["resources"]
    resources = after["spec"]["containers"][0]["resources"]
    expected = {f"nvidia.com/{name}": value for name, value in added.items()}
    assert resources["limits"] == {**before["limits"], **expected}
    assert resources.get("requests", {}) == expected
    assert after["spec"]["schedulerName"] == NAME


def test_the_patch_touches_only_what_changes() -> None:
    subject = with_spec(pod(gpu(), {}), scheduler_name="default-scheduler")
    assert [(op.op, op.path, op.value) for op in decide(subject).patch] == [
        ("replace", "/spec/schedulerName", NAME),
        ("add", "/spec/containers/0/resources/limits/nvidia.com~1gpucores", "100"),
        ("add", "/spec/containers/0/resources/requests", {"nvidia.com/gpucores": "100"}),
    ]


def test_init_containers_are_changed_too() -> None:
    subject = pod({}, inits=({"limits": {"nvidia.com/gpumem": 5}},))
    after = patched(subject, decide(subject))
    assert after["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_container_without_resources_gets_them_whole() -> None:
    class Always(Nvidia):
        def admit(self, container: object) -> Any:
            return msgspec.structs.replace(super().admit(pod(gpu()).containers[0]), limits=(("x", "1"),))

    subject = pod({})
    after = patched(subject, review(subject, "default", (Always(),), SETTINGS))
    assert after["spec"]["containers"][0]["resources"] == {"limits": {"x": "1"}, "requests": {"x": "1"}}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (None, [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ([], [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ([{"name": "A", "value": "b"}], [{"name": "A", "value": "b"}, {"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ([{"name": "CUDA_TASK_PRIORITY", "value": "0"}], [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        (
            [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A"}, {"name": "NVIDIA_VISIBLE_DEVICES"}],
            [{"name": "A"}, {"name": "CUDA_TASK_PRIORITY", "value": "1"}],
        ),
    ],
)
def test_b22_variables_of_containers_with_devices(
    env: list[dict[str, str]] | None, expected: list[dict[str, str]]
) -> None:
    wish = gpu(mem=5)
    wish["limits"] = {**wish["limits"], "nvidia.com/priority": "1"}  # type: ignore[dict-item]
    subject = pod({**wish, "env": env})
    admission = decide(subject)
    assert patched(subject, admission)["spec"]["containers"][0]["env"] == expected
    assert bool(admission.warnings) == ("NVIDIA_VISIBLE_DEVICES" in str(env))


@pytest.mark.parametrize("count", [None, 0])
@pytest.mark.parametrize("env", [None, [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]])
def test_b22_with_overwrite_env_containers_without_devices_see_none(count: int | None, env: object) -> None:
    subject = pod({"env": env, "limits": {} if count is None else {"nvidia.com/gpu": count}}, gpu(mem=5))
    after = patched(subject, decide(subject, NvidiaConfig(overwrite_env=True)))
    assert after["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert "env" not in after["spec"]["containers"][1]


@pytest.mark.parametrize("subject", [pod({}), pod(gpu(0)), pod({"securityContext": {"privileged": True}})])
def test_a_pod_without_devices_is_left_alone(subject: Pod) -> None:
    assert decide(subject) == Admission(True)


def test_the_core_policy_goes_only_where_cards_are_asked_for() -> None:
    subject = pod(gpu(mem=5), {})
    after = patched(subject, decide(subject, NvidiaConfig(gpu_core_policy="force")))
    assert after["spec"]["containers"][0]["env"] == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    assert "env" not in after["spec"]["containers"][1]


@pytest.mark.parametrize(("own", "expected"), [(None, "nvidia"), ("", "nvidia"), ("kata", "kata")])
def test_the_runtime_class_is_set_only_where_there_is_none(own: str | None, expected: str) -> None:
    subject = with_spec(pod(gpu(mem=5)), runtime_class_name=own)
    after = patched(subject, decide(subject, NvidiaConfig(runtime_class_name="nvidia")))
    assert after["spec"]["runtimeClassName"] == expected


# --- whose pods (report B05) ---


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", ["", "default-scheduler", "hami-scheduler", "volcano"])
def test_b05_scheduler_names(name: str, force: bool) -> None:
    subject = with_spec(pod(gpu(mem=5)), scheduler_name=name)
    options = AdmissionSettings(force_overwrite_default_scheduler=force)
    admission = decide(subject, options=options)
    assert admission.allowed
    left_alone = name == "volcano" or (name == "default-scheduler" and not force)
    assert admission.message == ("pod already has different scheduler assigned" if left_alone else "")
    assert patched(subject, admission)["spec"].get("schedulerName", "") == (name if left_alone else NAME)


def test_without_own_name_the_field_stays() -> None:
    subject = with_spec(pod(gpu(mem=5)), node_name="n1")
    assert decide(subject, options=AdmissionSettings(scheduler_name="")) == Admission(True)


# --- what is refused ---

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


# --- twice is once ---

quantities = st.sampled_from([None, 0, 1, 2, 50, 100, "3k"])
variables = st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"])
envs = st.none() | st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, variables, st.sampled_from(["", "1", "none", "all"])),
    max_size=4,
)
resource_names = [f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpucores", "gpumem-percentage", "priority")]
limit_maps = st.dictionaries(st.sampled_from(resource_names), quantities.filter(lambda each: each is not None))
containers = st.builds(
    lambda limits, requests, env: {"resources": {"limits": limits, "requests": requests}, "env": env},
    st.none() | limit_maps,
    st.none() | limit_maps,
    envs,
)
configs = st.builds(
    NvidiaConfig,
    overwrite_env=st.booleans(),
    gpu_core_policy=st.sampled_from(["default", "force"]),
    runtime_class_name=st.sampled_from(["", "nvidia"]),
)


@settings(max_examples=150)
@given(st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2), configs)
def test_a_second_review_changes_nothing(
    apps: list[dict[str, object]], inits: list[dict[str, object]], config: NvidiaConfig
) -> None:
    subject = pod(*apps, inits=tuple(inits))
    first = decide(subject, config)
    if not first.allowed:
        return
    again = msgspec.convert(patched(subject, first), Pod)
    assert decide(again, config).patch == ()
