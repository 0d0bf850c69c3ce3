"""Reports B05, B07, B08: whose pods the webhook touches, privileged ones, and forged keys."""

from __future__ import annotations

from typing import Any

import pytest

from hami.core.admission import AdmissionSettings
from tests.reports.site import SIDECAR, Object, Site, gpu, pod, refused

OWN = "hami-scheduler"


# --- B05: whose pods ---


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(
    ("name", "taken"),
    [
        pytest.param(None, True, id="B05-absent"),
        pytest.param("", True, id="B05-empty"),
        pytest.param("default-scheduler", None, id="B05-default"),
        pytest.param(OWN, True, id="B05-own"),
        pytest.param("volcano", False, id="B05-volcano"),
        pytest.param("Default-Scheduler", False, id="B05-upper-case-is-another-name"),
        pytest.param("hami-scheduler-2", False, id="B05-begins-like-ours"),
        pytest.param("hami", False, id="B05-part-of-ours"),
    ],
)
async def test_b05_only_pods_of_nobody_and_of_ours_are_taken(
    name: str | None, taken: bool | None, force: bool, version: str
) -> None:
    fields: dict[str, Any] = {} if name is None else {"schedulerName": name}
    site = Site(settings=AdmissionSettings(force_overwrite_default_scheduler=force))
    response = await site.create(pod(gpu(gpu=1, mem=100), **fields), version=version)
    expected = force if taken is None else taken
    assert response["allowed"]
    assert response["pod"]["spec"].get("schedulerName") == (OWN if expected else name)


@pytest.mark.parametrize("own", ["gpu-scheduler", "default-scheduler", ""])
async def test_b05_the_name_is_configurable(own: str) -> None:
    site = Site(settings=AdmissionSettings(scheduler_name=own))
    response = await site.create(pod(gpu(gpu=1, mem=100), schedulerName="default-scheduler"))
    assert response["pod"]["spec"]["schedulerName"] == (own or "default-scheduler")


# --- B07: privileged ---

ROOT = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod({"name": "bad", **ROOT}, gpu("c2", gpu=1)), id="B07-beside"),
        pytest.param(pod(gpu("c2", gpu=1), {"name": "bad", **ROOT}), id="B07-behind"),
        pytest.param(pod({**gpu("bad", gpu=1), **ROOT}), id="B07-the-same"),
        pytest.param(pod(gpu("c2", gpu=1), init=({"name": "bad", **ROOT},)), id="B07-init"),
        pytest.param(pod(gpu("c2", gpu=1), init=({"name": "bad", **ROOT, **SIDECAR},)), id="B07-sidecar"),
        pytest.param(pod({"name": "bad", **ROOT}, init=(gpu("i", gpu=1),)), id="B07-init-asks"),
        pytest.param(pod({"name": "bad", **ROOT}, gpu("c2", mem=500)), id="B07-memory-without-count"),
        pytest.param(pod({"name": "bad", **ROOT}, gpu("c2", kind="requests", gpu=1)), id="B07-requests-only"),
        pytest.param(pod({"name": "bad", **ROOT}, gpu("c2", gpu=1), schedulerName=OWN), id="B07-our-name"),
        pytest.param(pod({"name": "bad", **ROOT}, gpu("c2", gpu=1), nodeName="n1"), id="B07-and-node-name"),
    ],
)
async def test_b07_privileged_and_devices_do_not_go_together(body: Object) -> None:
    await refused(Site(), body, "container bad is privileged")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod({"name": "c", **ROOT}), id="B07-no-devices"),
        pytest.param(pod({**gpu("c", gpu=0), **ROOT}), id="B07-zero-devices"),
        pytest.param(pod({"name": "c", **ROOT}, schedulerName="default-scheduler"), id="B07-no-devices-default"),
        pytest.param(pod({"name": "c", **ROOT}, gpu("d", gpu=1), schedulerName="volcano"), id="B07-other-scheduler"),
    ],
)
async def test_b07_otherwise_privileged_pods_pass_untouched(body: Object) -> None:
    response = await Site().create(body)
    assert response["allowed"]
    assert response["pod"] == body


async def test_b07_privileged_false_and_empty_contexts_are_harmless() -> None:
    for context in ({"privileged": False}, {}, {"runAsUser": 0}):
        assert (await Site().create(pod({**gpu("c", gpu=1), "securityContext": context})))["allowed"]


# --- B08: forged keys ---

FORGED = ["vgpu-node", "vgpu-time", "bind-phase", "bind-time", "vgpu-devices-to-allocate", "vgpu-devices-allocated",
          "vgpu-mig-allocations", "dcu-devices-allocated", "cambricon-mlu-devices-to-allocate", "kunlun-allocated",
          "Ascend910B3-devices-allocated"]  # fmt: skip


@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano", OWN])
@pytest.mark.parametrize("key", FORGED)
async def test_b08_what_only_the_scheduler_writes_is_refused_on_every_path(key: str, scheduler: str) -> None:
    for container in (gpu(gpu=1), gpu(), gpu(gpu=0)):
        for value in ("GPU-x,NVIDIA,20000,100:;", ""):
            body = pod(container, annotations={"a": "b", f"hami.io/{key}": value}, schedulerName=scheduler)
            await refused(Site(), body, f"hami.io/{key}")


async def test_b08_all_forged_keys_are_named_and_users_keys_pass() -> None:
    keys = {f"hami.io/{key}": "x" for key in FORGED}
    await refused(Site(), pod(gpu(gpu=1), annotations=keys), *keys)
    own = {"hami.io/gpu-scheduler-policy": "spread", "nvidia.com/use-gputype": "A100", "example.com/allocated": "x",
           "hami.io/note": "x"}  # fmt: skip
    assert (await Site().create(pod(gpu(gpu=1, mem=1), annotations=own)))["allowed"]
