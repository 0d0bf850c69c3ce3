"""Admission: upstream's order, minimal idempotent patches (spec/scheduler 3.1, 3.2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.admission import Admission, AdmissionSettings, review
from hami.core.objects import Pod
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import gpu, pod
from tests.core.reviews import NAME, SETTINGS, decide, patched, with_spec


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
