"""Namespace quotas: limits of objects, what is known of a pod, texts (reports B17, B19, B20)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core import admission
from hami.core.admission import AdmissionSettings
from hami.core.device_type import Refusal
from hami.core.fit import Fit, evaluate
from hami.core.model import ContainerKind, ContainerRequest, DeviceRequest, PodRequest, Policies, Use
from hami.core.objects import Pod, ResourceQuota, quota_decoder
from hami.core.quota import Excess, Limit, effective_limits, excesses, known_use, room_of
from hami.core.request import pod_request
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import REGISTRY, device, gpu, node, pod

MEM, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def quota(name: str = "q", **hard: object) -> ResourceQuota:
    keys = {"mem": MEM, "cores": CORES, "pods": "pods"}
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"hard": {keys[k]: v for k, v in hard.items()}}}
    return quota_decoder.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("quotas", "memory", "cores"),
    [
        ([], None, None),
        ([quota(pods="3")], None, None),
        ([quota(mem="2000")], ("q", 2000), None),
        ([quota(mem="0")], ("q", 0), None),
        ([quota(mem="2k", cores="150")], ("q", 2000), ("q", 150)),
        ([quota("b", mem="2000"), quota("a", mem="3000", cores="10")], ("b", 2000), ("a", 10)),
        ([quota("b", mem="2000"), quota("a", mem="2000")], ("a", 2000), None),
        ([quota(mem="1500m")], ("q", 1), None),
        ([quota(mem="garbage")], ("q", 0), None),
    ],
)
def test_B20_smallest_limit_of_all_objects(quotas: list[ResourceQuota], memory: Any, cores: Any) -> None:
    found = effective_limits(quotas, REGISTRY)
    limits = found[0] if found else None
    assert (limits.memory and (limits.memory.quota, limits.memory.value) if limits else None) == memory
    assert (limits.cores and (limits.cores.quota, limits.cores.value) if limits else None) == cores


def test_memory_limit_counts_in_the_resources_unit() -> None:
    registry = (Nvidia(NvidiaConfig(memory_factor=10)),)
    limits = effective_limits([quota(mem="100", cores="50")], registry)[0]
    assert limits.memory == Limit("q", "nvidia.com/gpumem", 1000, "MiB", 10)
    assert limits.cores == Limit("q", "nvidia.com/gpucores", 50, "%")


@pytest.mark.parametrize(
    ("used", "use", "fits"),
    [
        (Use(1, 600, 50), Use(1, 400, 50), True),
        (Use(1, 600, 50), Use(1, 401, 0), False),
        (Use(1, 600, 50), Use(1, 0, 51), False),
        (Use(1, 1100, 0), Use(1, 0, 0), False),
    ],
)
def test_room(used: Use, use: Use, fits: bool) -> None:
    room = room_of(effective_limits([quota(mem="1000", cores="100")], REGISTRY), {"NVIDIA": used})
    assert room("NVIDIA", use) is fits
    assert room("MLU", use) is True


def shape(subject: Pod) -> PodRequest:
    found = pod_request(subject, REGISTRY, Policies())
    assert not isinstance(found, Refusal)
    return found


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (pod(gpu(mem=1024), gpu(mem=1024)), Use(2, 2048, 0)),
        (pod(gpu(2, mem=2500, cores=30)), Use(2, 5000, 60)),
        (pod(gpu(percent=50)), Use(1, 0, 0)),
        (pod(gpu()), Use(1, 0, 0)),
        (pod(gpu(mem=1000), inits=(gpu(mem=3000), gpu(mem=2000))), Use(1, 3000, 0)),
        (pod(gpu(mem=1000), inits=({**gpu(mem=3000), "restartPolicy": "Always"},)), Use(2, 4000, 0)),
    ],
)
def test_B17_known_use(subject: Pod, expected: Use) -> None:
    assert known_use(shape(subject), slices_possible=False)["NVIDIA"] == expected
    assert known_use(shape(subject), slices_possible=True)["NVIDIA"].core_percent == 0


@pytest.mark.parametrize(("mode", "cores"), [("hami-core", 60), ("mps", 60), ("mig", 0), ("hami-core,mig", 0), ("", 0)])
def test_cores_count_where_no_mig_slice_may_serve(mode: str, cores: int) -> None:
    request = shape(pod(gpu(2, mem=2500, cores=30), annotations={"nvidia.com/vgpu-mode": mode} if mode else {}))
    assert known_use(request, slices_possible=True)["NVIDIA"] == Use(2, 5000, cores)


_requests = st.builds(
    DeviceRequest,
    vendor=st.just("NVIDIA"),
    count=st.integers(1, 2),
    memory_mib=st.sampled_from((0, 500, 4000)),
    memory_percent=st.sampled_from((10, 100)),
    core_percent=st.sampled_from((0, 20, 100)),
)
_containers = st.builds(ContainerRequest, kind=st.sampled_from(ContainerKind), devices=st.tuples(_requests))


@settings(max_examples=150, deadline=None)
@given(st.lists(_containers, min_size=1, max_size=4))
def test_admission_never_counts_more_than_is_charged(containers: list[ContainerRequest]) -> None:
    request = PodRequest(tuple(sorted(containers, key=lambda each: each.kind is ContainerKind.APP)))
    found = evaluate(node(*(device(f"GPU-{n}", index=n, core_percent=400) for n in range(4))), request, REGISTRY)
    if isinstance(found, Fit):
        charged = sum(found.charge.values(), start=Use())
        known = known_use(request, slices_possible=False)["NVIDIA"]
        assert known.memory_mib <= charged.memory_mib
        assert known.core_percent <= charged.core_percent


def test_text_has_upstreams_words_then_the_numbers() -> None:
    limits = effective_limits([quota("team-quota", mem="2000", cores="10")], REGISTRY)
    found = list(excesses("team", limits, {"NVIDIA": Use(1, 500, 0)}, {"NVIDIA": Use(2, 2048, 0)}))
    assert found == [Excess("team", Limit("team-quota", "nvidia.com/gpumem", 2000, "MiB"), 500, 2048)]
    assert found[0].text == (
        "exceeding resource quota team-quota in namespace team: nvidia.com/gpumem"
        " used 500 MiB, requested 2048 MiB, limit 2000 MiB"
    )


def test_B16_the_hook_sees_the_counts_that_admission_adds() -> None:
    seen: list[PodRequest] = []

    def advice(namespace: str, subject: Pod) -> Refusal | None:
        seen.append(shape(subject))
        return Refusal(f"exceeding resource quota in {namespace}")

    asking = pod({"limits": {"nvidia.com/gpumem": 7000, "nvidia.com/gpucores": 30}}, {}, inits=({},))
    answer = admission.review(asking, "team", REGISTRY, AdmissionSettings(), advice)
    assert (answer.allowed, answer.message, answer.code) == (False, "exceeding resource quota in team", 403)
    assert known_use(seen[0], slices_possible=False) == {"NVIDIA": Use(1, 7000, 30)}
