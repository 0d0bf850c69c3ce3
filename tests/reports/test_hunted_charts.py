"""Reports beyond the list on the chart, and values files of HAMi's chart after 2.10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.config.scheduler import load
from tests.chart.rendering import UPSTREAM_VALUES, Object, container, notes, one, pod_spec, render

NEXT_VALUES = UPSTREAM_VALUES.with_name("upstream-next-values.yaml")
SCC = "system:openshift:scc:"


def scheduler_args(objects: list[Object]) -> list[str]:
    args: list[str] = container(objects, "Deployment", "vgpu-scheduler-extender")["args"]
    return args


def flag(objects: list[Object], name: str) -> str | None:
    found = [each.partition("=")[2] for each in scheduler_args(objects) if each.startswith(f"--{name}=")]
    return found[0] if found else None


def http_timeout(objects: list[Object]) -> str:
    config = yaml.safe_load(one(objects, "ConfigMap", "hami-scheduler")["data"]["config.yaml"])
    text: str = config["extenders"][0]["httpTimeout"]
    return text


@pytest.mark.parametrize("files", [(NEXT_VALUES,), (UPSTREAM_VALUES, NEXT_VALUES)], ids=["alone", "over 2.10's"])
def test_a_values_file_of_a_newer_hami_is_known_in_every_key(files: tuple[Path, ...]) -> None:
    assert "does not know" not in notes(None, *files)
    objects = render(None, *files)
    assert "auto" not in str(pod_spec(objects, "DaemonSet")["volumes"])
    load(scheduler_args(objects)[1:], {})


@pytest.mark.parametrize(
    ("address", "port"), [(":9395", 9395), (":9500", 9500), ("127.0.0.1:9400", 9400), ("[::]:9", 9)]
)
@pytest.mark.parametrize("target", [None, "metrics", "the same"])
def test_hami_2895_the_metrics_service_follows_the_bind_address(address: str, port: int, target: str | None) -> None:
    values: dict[str, Any] = {"scheduler": {"metricsBindAddress": address}}
    if target is not None:
        values["scheduler"]["service"] = {"monitorTargetPort": port if target == "the same" else target}
    objects = render(values)
    ports = container(objects, "Deployment", "vgpu-scheduler-extender")["ports"]
    assert {each["name"]: each["containerPort"] for each in ports}["metrics"] == port
    service = next(
        each for each in objects if each["kind"] == "Service" and each["metadata"]["name"] == "hami-scheduler"
    )
    assert {each["name"]: each["targetPort"] for each in service["spec"]["ports"]}["monitor"] == "metrics"


@pytest.mark.parametrize(
    ("values", "accounts", "labelled"),
    [
        ({"platform": {"openshift": True}}, {"hami-scheduler", "hami-device-plugin"}, "container_file_t"),
        ({"platform": {"openshift": False}}, set(), ""),
        ({"selinux": {"enabled": True}}, set(), "container_file_t"),
        ({"selinux": {"enabled": True, "type": "gpu_file_t"}}, set(), "gpu_file_t"),
        ({"openshift": {"enabled": True}}, {"hami-scheduler", "hami-device-plugin"}, "container_file_t"),
    ],
)
def test_b143_hamis_own_switches_for_openshift_and_selinux(values: Object, accounts: set[str], labelled: str) -> None:
    objects = render(values, NEXT_VALUES)
    bindings = [each for each in objects if each["kind"] == "RoleBinding" and SCC in each["roleRef"]["name"]]
    assert {each["subjects"][0]["name"] for each in bindings} == accounts
    spec = pod_spec(objects, "DaemonSet")
    assert ("securityContext" in spec) == bool(labelled)
    env = {each["name"]: each["value"] for each in spec["initContainers"][0].get("env", ())}
    assert env.get("VGPU_SELINUX_TYPE", "") == labelled


@pytest.mark.parametrize(
    ("values", "timeout", "turn"),
    [
        ({}, "30s", "25s"),
        ({"bindTimeoutSeconds": 60}, "60s", "55s"),
        ({"extenderHTTPTimeout": 90}, "90s", "85s"),
        ({"extenderHTTPTimeout": 90, "nodeLockRetryTimeout": "28s"}, "90s", "28s"),
        ({"nodeLockRetryTimeout": "0"}, "30s", "0"),
        ({"nodeLockRetryTimeout": ""}, "30s", "25s"),
    ],
)
def test_hami_1130_the_wait_for_a_node_is_shorter_than_kube_schedulers_patience(
    values: Object, timeout: str, turn: str
) -> None:
    objects = render({"scheduler": values})
    assert (http_timeout(objects), flag(objects, "node-lock-retry-timeout")) == (timeout, turn)
    settings, _ = load(scheduler_args(objects)[1:], {})
    assert settings.node_lock_retry_timeout_s < int(timeout.removesuffix("s"))


def test_hami_1367_limits_of_requests_are_values() -> None:
    assert flag(render(), "kube-qps") is None
    objects = render({"scheduler": {"kubeQPS": 200, "kubeBurst": "400", "kubeTimeout": 0}})
    assert [flag(objects, name) for name in ("kube-qps", "kube-burst", "kube-timeout")] == ["200", "400", "0"]


@pytest.mark.parametrize(
    ("budget", "spec"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"minAvailable": 1}, {"minAvailable": 1}),
        ({"minAvailable": "50%"}, {"minAvailable": "50%"}),
        ({"minAvailable": None, "maxUnavailable": 2}, {"maxUnavailable": 2}),
    ],
)
def test_b146_a_budget_says_how_many_stay_or_how_many_go_never_both(budget: Object, spec: Object) -> None:
    objects = render({"scheduler": {"replicas": 3, "podDisruptionBudget": budget}})
    found = one(objects, "PodDisruptionBudget")["spec"]
    assert {key: value for key, value in found.items() if key != "selector"} == spec
    assert not [each for each in render({"scheduler": {"podDisruptionBudget": budget}}) if "Disruption" in each["kind"]]


@pytest.mark.parametrize("value", ["true", True])
def test_hami_1705_overwrite_env_reaches_the_device_configuration(value: object) -> None:
    config = yaml.safe_load(
        one(render({"scheduler": {"overwriteEnv": value}}), "ConfigMap", "hami-scheduler-device")["data"][
            "device-config.yaml"
        ]
    )
    assert config["nvidia"]["overwriteEnv"] is True


@pytest.mark.parametrize("root", [None, "auto", ""])
def test_b145_without_a_driver_folder_none_is_mounted(root: str | None) -> None:
    objects = render({"devicePlugin": {"nvidiaDriverRoot": root}})
    assert "driver" not in {each["name"] for each in pod_spec(objects, "DaemonSet")["volumes"]}
    assert not [each for each in container(objects, "DaemonSet", "device-plugin")["args"] if "driver-root" in each]
