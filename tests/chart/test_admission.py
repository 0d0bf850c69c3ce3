"""The webhook, its certificate and the admission policy as the chart makes them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hami.core import keys
from hami.vendors.nvidia import names
from tests.chart.rendering import (
    one,
    pod_spec,
    render,
)
from tests.chart.whole_charts import kube_scheduler_config


def test_webhook_leaves_kube_system_and_our_namespace_alone() -> None:
    objects = render({"scheduler": {"admissionWebhook": {"whitelistNamespaces": ["infra"]}}}, namespace="gpu")
    webhook = one(objects, "MutatingWebhookConfiguration")["webhooks"][0]
    exempt = {each["key"]: each["values"] for each in webhook["namespaceSelector"]["matchExpressions"]}
    assert exempt == {
        keys.WEBHOOK_LABEL: [keys.WEBHOOK_IGNORE],
        "kubernetes.io/metadata.name": ["kube-system", "gpu", "infra"],
    }
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["name"] == "vgpu.hami.io"
    assert webhook["clientConfig"]["service"]["namespace"] == "gpu"


@pytest.mark.parametrize(
    ("values", "kube_version", "asked_about_all"),
    [
        ({}, "v1.28.0", False),
        ({}, "v1.31.4-gke.1183000", False),
        ({}, "v1.27.16", True),
        ({"scheduler": {"overwriteEnv": True}}, "v1.34.1", True),
    ],
)
def test_webhook_is_asked_about_pods_that_may_be_ours(
    values: dict[str, Any], kube_version: str, asked_about_all: bool
) -> None:
    """What the condition means is tried on a real kube-apiserver (tests/cluster/test_chart.py)."""
    webhook = one(render(values, kube_version=kube_version), "MutatingWebhookConfiguration")["webhooks"][0]
    conditions = webhook.get("matchConditions", [])
    assert (not conditions) is asked_about_all
    managed = [each["name"] for each in kube_scheduler_config(render(values))["extenders"][0]["managedResources"]]
    assert all(f"'{name}'" in condition["expression"] for condition in conditions for name in managed)


def test_policy_protects_every_allocation_key_and_lists_the_writers() -> None:
    objects = render({"admissionPolicy": {"extraWriters": ["system:serviceaccount:velero:velero"]}}, namespace="gpu")
    spec = one(objects, "ValidatingAdmissionPolicy")["spec"]
    protected = next(each["expression"] for each in spec["variables"] if each["name"] == "keys")
    written = (
        keys.VGPU_NODE,
        keys.VGPU_TIME,
        keys.BIND_PHASE,
        keys.BIND_TIME,
        keys.BIND_EPOCH,
        keys.MIG_ALLOCATIONS,
        names.TO_ALLOCATE_KEY,
        names.ALLOCATED_KEY,
    )
    assert sorted(yaml.safe_load(protected)) == sorted(written)
    allowed = spec["matchConditions"][0]["expression"]
    for writer in ("gpu:hami-scheduler", "gpu:hami-device-plugin", "velero:velero"):
        assert f"system:serviceaccount:{writer}" in allowed
    rule = spec["matchConstraints"]["resourceRules"][0]
    assert {"pods", "pods/status", "pods/binding"} <= set(rule["resources"])
    assert rule["operations"] == ["CREATE", "UPDATE"]


@pytest.mark.parametrize(
    ("values", "kinds", "secret"),
    [
        ({}, {"Secret"}, None),
        ({"certManager": {"enabled": True}}, {"Issuer", "Certificate"}, "hami-scheduler-tls"),
        ({"certificates": {"existingSecret": "mine"}}, set(), "mine"),
        ({"patch": {"enabled": False}}, set(), "hami-scheduler-tls"),
    ],
)
def test_certificates_come_from_one_place(values: dict[str, Any], kinds: set[str], secret: str | None) -> None:
    objects = render({"scheduler": values})
    assert {each["kind"] for each in objects} & {"Secret", "Issuer", "Certificate"} == kinds
    spec = pod_spec(objects, "Deployment")
    mounted = [each["secret"]["secretName"] for each in spec["volumes"] if each["name"] == "tls"]
    assert mounted == ([secret] if secret else []), "a self-made certificate is in memory only"
    assert "initContainers" not in spec


def test_self_made_certificate_is_for_the_services_name() -> None:
    objects = render(namespace="gpu")
    arguments = pod_spec(objects, "Deployment")["containers"][-1]["args"]
    service = one(objects, "Service", "hami-scheduler")
    assert f"--certificate-host={service['metadata']['name']}.gpu.svc" in arguments
    assert f"--tls-secret=gpu/{one(objects, 'Secret')['metadata']['name']}" in arguments
    configuration = one(objects, "MutatingWebhookConfiguration")["metadata"]["name"]
    assert f"--webhook-configuration={configuration}" in arguments
