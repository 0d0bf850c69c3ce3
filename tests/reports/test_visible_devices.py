"""Report B22: what a container sees that asks for no cards, and what it may choose itself."""

from __future__ import annotations

import pytest

from hami.vendors.nvidia.config import NvidiaConfig
from tests.reports.site import Object, Site, gpu, pod

OWN = "hami-scheduler"
SEES_ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
FROM_MAP = [{"configMapRef": {"name": "settings"}}]


def env_of(body: Object, place: int = 0) -> dict[str, object]:
    return {each["name"]: each.get("value") for each in body["spec"]["containers"][place].get("env") or ()}


@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano", OWN])
@pytest.mark.parametrize(
    "container",
    [
        pytest.param(gpu(), id="B22-nothing"),
        pytest.param(gpu(gpu=0), id="B22-zero"),
        pytest.param({**gpu(), "env": SEES_ALL}, id="B22-all"),
        pytest.param({**gpu(), "env": [*SEES_ALL, {"name": "A", "value": "b"}, *SEES_ALL]}, id="B22-all-twice"),
        pytest.param({**gpu(), "envFrom": FROM_MAP}, id="B22-from-elsewhere"),
        pytest.param(
            {**gpu(), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}]}, id="B22-value-from"
        ),
        pytest.param({"name": "c"}, id="B22-no-resources"),
        pytest.param({"name": "c", "resources": {"limits": {"cpu": "1"}}}, id="B22-cpu"),
    ],
)
async def test_b22_with_the_overwrite_containers_without_devices_see_none(container: Object, scheduler: str) -> None:
    response = await Site(NvidiaConfig(overwrite_env=True)).create(pod(container, schedulerName=scheduler))
    assert response["allowed"]
    assert env_of(response["pod"])["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert response["pod"]["spec"]["schedulerName"] == scheduler
    without = await Site().create(pod(container, schedulerName=scheduler))
    assert without["pod"] == pod(container, schedulerName=scheduler)


@pytest.mark.parametrize(
    ("container", "scheduler"),
    [
        pytest.param({"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, OWN, id="B22-static-mig"),
        pytest.param({"name": "c", "resources": {"claims": [{"name": "gpu"}]}}, OWN, id="B22-claim"),
        pytest.param({"name": "c", "resources": {"claims": [{"name": "gpu"}]}}, "volcano", id="B22-claim-elsewhere"),
        pytest.param(
            {"name": "c", "resources": {"limits": {"volcano.sh/vgpu-number": 1}}}, "volcano", id="B22-volcano"
        ),
        pytest.param(gpu(gpu=1), "volcano", id="B22-our-resource-elsewhere"),
        pytest.param(gpu(gpu=0, mem=5), "volcano", id="B22-our-memory-elsewhere"),
    ],
)
async def test_b22_containers_that_get_cards_another_way_keep_them(container: Object, scheduler: str) -> None:
    response = await Site(NvidiaConfig(overwrite_env=True)).create(pod(container, schedulerName=scheduler))
    assert response["pod"]["spec"]["containers"] == [container]


async def test_b22_with_renamed_resources_the_vendors_own_plugin_keeps_its_containers() -> None:
    config = NvidiaConfig(resource_count_name="example.com/vgpu", overwrite_env=True)
    body = pod({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    assert (await Site(config).create(body))["pod"] == body
    assert env_of((await Site(config).create(pod({"name": "c"})))["pod"]) == {"NVIDIA_VISIBLE_DEVICES": "none"}


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("value", ["all", "none", "void", "", "GPU-x", "0,1"])
async def test_b22_a_users_choice_never_widens_the_allocation(value: str, overwrite: bool) -> None:
    container = {**gpu(gpu=1, mem=5), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}] * 2}
    response = await Site(NvidiaConfig(overwrite_env=overwrite)).create(
        pod(container, init=({**container, "name": "i"},))
    )
    assert env_of(response["pod"]) == {}
    assert response["pod"]["spec"]["initContainers"][0]["env"] == []
    assert any("NVIDIA_VISIBLE_DEVICES is removed" in warning for warning in response["warnings"])


async def test_b22_variables_from_elsewhere_are_warned_of() -> None:
    response = await Site().create(pod({**gpu(gpu=1, mem=5), "envFrom": FROM_MAP}))
    assert response["allowed"]
    assert any("envFrom" in warning for warning in response["warnings"])
    assert "warnings" not in await Site().create(pod({**gpu(), "envFrom": FROM_MAP}))


async def test_b22_mixed_pods_are_judged_container_by_container() -> None:
    body = pod(gpu("a", gpu=1, mem=5), {**gpu("b", gpu=0), "env": SEES_ALL}, gpu("c"))
    after = (await Site(NvidiaConfig(overwrite_env=True)).create(body))["pod"]
    assert [env_of(after, place).get("NVIDIA_VISIBLE_DEVICES") for place in range(3)] == [None, "none", "none"]
