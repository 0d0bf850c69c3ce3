"""Reports B02, B04: whom the webhook configuration sends to the webhook, and what it does with system pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.vendors.nvidia.config import NvidiaConfig
from tests.reports.site import Object, Site, gpu, pod

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
VARIANTS = ("base", "cert-manager", "own-certificate", "simulated")


def webhook(variant: str) -> Object:
    """The pod webhook of the rendered manifests."""
    documents = yaml.safe_load_all((MANIFESTS / variant / "hami.yaml").read_text())
    found = [each for each in documents if each and each["kind"] == "MutatingWebhookConfiguration"]
    (only,) = [each for configuration in found for each in configuration["webhooks"] if each["name"] == "vgpu.hami.io"]
    chosen: Object = only
    return chosen


def selected(selector: Object, labels: dict[str, str]) -> bool:
    """matchExpressions of a label selector (NotIn only, which is all that the manifests have)."""
    assert "matchLabels" not in selector
    for each in selector["matchExpressions"]:
        assert each["operator"] == "NotIn"
        if labels.get(each["key"]) in each["values"]:
            return False
    return True


@pytest.mark.parametrize("variant", VARIANTS)
def test_b02_only_pods_that_may_be_ours_meet_the_webhook_and_none_waits_long(variant: str) -> None:
    hook = webhook(variant)
    (condition,) = hook["matchConditions"]
    resources = set(re.findall(r"'([a-z.]+/[a-z-]+)'", condition["expression"]))
    assert resources == set(NvidiaConfig().resource_names)
    assert "startsWith('hami.io/')" in condition["expression"]
    assert hook["timeoutSeconds"] <= 10
    assert [(rule["operations"], rule["resources"]) for rule in hook["rules"]] == [(["CREATE"], ["pods"])]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("namespace", "reached"),
    [
        pytest.param("kube-system", False, id="B04-kube-system"),
        pytest.param("hami-system", False, id="B04-our-own"),
        pytest.param("default", True, id="B04-default"),
        pytest.param("kube-system-2", True, id="B04-begins-like-it"),
    ],
)
def test_b04_system_namespaces_and_our_own_never_need_the_webhook(variant: str, namespace: str, reached: bool) -> None:
    hook = webhook(variant)
    labels = {"kubernetes.io/metadata.name": namespace}
    assert selected(hook["namespaceSelector"], labels) == reached
    assert not selected(hook["namespaceSelector"], {**labels, "hami.io/webhook": "ignore"})
    assert selected(hook["objectSelector"], {})
    assert not selected(hook["objectSelector"], {"hami.io/webhook": "ignore"})
    assert hook["failurePolicy"] == "Ignore"


@pytest.mark.parametrize("namespace", ["kube-system", "hami-system", "default", ""])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"hostNetwork": True}, id="B04-host-network"),
        pytest.param({"nodeName": "n1"}, id="B04-static"),
        pytest.param({"priorityClassName": "system-node-critical"}, id="B04-critical"),
        pytest.param({"schedulerName": "default-scheduler"}, id="B04-default-scheduler"),
    ],
)
async def test_b04_pods_without_devices_pass_untouched_wherever_they_are(
    fields: dict[str, Any], namespace: str
) -> None:
    privileged = {"name": "agent", "securityContext": {"privileged": True}}
    site = Site()
    site.quota(limits_nvidia_com__gpu="0")
    for body in (pod(gpu(), **fields), pod(privileged, **fields), pod(gpu(gpu=0), **fields)):
        response = await site.create(body, namespace=namespace)
        assert response["allowed"]
        assert response["pod"] == body
        assert "patch" not in response
