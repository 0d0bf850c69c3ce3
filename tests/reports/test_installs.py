"""Installs that renderers, clusters and people make differently from ours: B137 and others of its kind."""

from __future__ import annotations

import json

import pytest

from tests.chart.rendering import container, one, pod_spec, render

LONGEST_RELEASE = "r" * 53
SERVICE_NAME_CHARS = 63


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.29.11-eks-56e63d8", "v1.29.11"),
        ("v1.31.2+k3s1", "v1.31.2"),
        ("v1.30.4-gke.1129000", "v1.30.4"),
        ("1.32", "v1.32.0"),
        ("v1.32", "v1.32.0"),
    ],
)
def test_b137_kube_scheduler_is_a_release_that_there_is(version: str, tag: str) -> None:
    image = container(render(kube_version=version), "Deployment", "kube-scheduler")["image"]
    assert image == f"registry.k8s.io/kube-scheduler:{tag}"


def test_the_longest_release_name_makes_names_that_kubernetes_takes() -> None:
    objects = render(release=LONGEST_RELEASE)
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert len(services) == 2
    assert max(map(len, services)) <= SERVICE_NAME_CHARS
    labels = [value for each in objects for value in each["metadata"].get("labels", {}).values()]
    assert max(map(len, labels)) <= SERVICE_NAME_CHARS


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_emptied_node_configuration_is_the_default(text: str) -> None:
    objects = render({"devicePlugin": {"nodeConfiguration": {"config": text}}})
    assert json.loads(one(objects, "ConfigMap", "hami-device-plugin")["data"]["config.json"]) == {"nodeconfig": []}


def test_b145_the_plugin_runs_on_nodes_that_clouds_taint_for_gpus() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod_spec(render(), "DaemonSet")["tolerations"] == [taint]
    assert "tolerations" not in pod_spec(render({"devicePlugin": {"tolerations": []}}), "DaemonSet")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.0.0.7", "https://10.0.0.7:31998/webhook"),
        ("fd00::7", "https://[fd00::7]:31998/webhook"),
        ("[fd00::7]", "https://[fd00::7]:31998/webhook"),
        ("gpu.example", "https://gpu.example:31998/webhook"),
    ],
)
def test_the_webhooks_own_address_may_be_ipv6(host: str, url: str) -> None:
    objects = render({"scheduler": {"admissionWebhook": {"customURL": {"enabled": True, "host": host}}}})
    webhook = one(objects, "MutatingWebhookConfiguration")["webhooks"][0]
    assert webhook["clientConfig"]["url"] == url
