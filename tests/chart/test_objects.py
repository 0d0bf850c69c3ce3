"""What the rendered objects say: to each other, to our own processes, to the cluster's version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.apps.dev import scheduler_config
from hami.config import device_config, device_plugin, monitor, node_config, scheduler
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.chart.rendering import (
    CHART,
    UPSTREAM_VALUES,
    Object,
    RenderError,
    all_containers,
    container,
    one,
    pod_spec,
    render,
)
from tests.chart.whole_charts import RENAMED, config_of, every_file, kube_scheduler_config


@every_file
def test_our_processes_take_their_arguments(file: Path) -> None:
    objects = render(None, file)
    extender = container(objects, "Deployment", "vgpu-scheduler-extender")
    settings, ignored = scheduler.load(extender["args"][1:], {})
    assert (extender["args"][0], ignored) == ("scheduler", [])
    plugin = container(objects, "DaemonSet", "device-plugin")
    plugin_settings, ignored = device_plugin.load(plugin["args"][1:], {"NODE_NAME": "n1"})
    assert (plugin["args"][0], ignored) == ("device-plugin", [])
    watcher = container(objects, "DaemonSet", "vgpu-monitor")
    monitor_settings, ignored = monitor.load(watcher["args"][1:], {"NODE_NAME": "n1"})
    assert (watcher["args"][0], ignored) == ("monitor", [])
    assert monitor_settings.vgpu_dir == plugin_settings.hook_path / "vgpu"
    mounts = {mount["mountPath"] for mount in plugin["volumeMounts"]}
    for folder in (plugin_settings.kubelet_dir, plugin_settings.hook_path / "vgpu", plugin_settings.lock_dir):
        assert str(folder) in mounts
    assert settings.leader_elect is ("--leader-elect" in extender["args"])


@every_file
def test_our_processes_read_their_files(file: Path) -> None:
    objects = render(None, file)
    config = device_config.parse(config_of(objects, "-scheduler-device", "device-config.yaml"), "chart")
    assert config.notes == ()
    if file == RENAMED:
        assert config.nvidia.resource_core_name == "example.com/gpucores"


def test_node_configuration_is_read(tmp_path: Path) -> None:
    for file in (CHART / "values.yaml", UPSTREAM_VALUES):
        path = tmp_path / "config.json"
        path.write_text(config_of(render(None, file), "-device-plugin", "config.json"))
        node = node_config.read(path, "your-node-name", NvidiaConfig())
        assert node.notes == ()


@every_file
def test_every_object_that_is_named_exists(file: Path) -> None:
    objects = render(None, file)
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    own_secret = "my-webhook-tls"
    made_by_cert_manager = {("Secret", each["spec"]["secretName"]) for each in objects if each["kind"] == "Certificate"}
    for kind in ("Deployment", "DaemonSet"):
        spec = pod_spec(objects, kind)
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
        wanted = set(references(spec))
        assert wanted - there - made_by_cert_manager - {("Secret", own_secret)} == set()
        volumes = {volume["name"] for volume in spec["volumes"]}
        used = {mount["name"] for each in all_containers(spec) for mount in each.get("volumeMounts", [])}
        assert used == volumes


def references(spec: Object) -> Iterator[tuple[str, str]]:
    for volume in spec["volumes"]:
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]


@every_file
def test_services_select_the_pods_and_name_their_ports(file: Path) -> None:
    objects = render(None, file)
    for service in (each for each in objects if each["kind"] == "Service"):
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        kind = "Deployment" if component == "hami-scheduler" else "DaemonSet"
        labels = one(objects, kind)["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        ports = {port["name"] for each in all_containers(pod_spec(objects, kind)) for port in each.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("file", [CHART / "values.yaml", RENAMED], ids=lambda path: path.stem)
def test_resource_names_reach_every_component(file: Path) -> None:
    objects = render(None, file)
    nvidia = device_config.parse(config_of(objects, "-scheduler-device", "device-config.yaml"), "chart").nvidia
    extender = kube_scheduler_config(objects)["extenders"][0]
    ours = scheduler_config(
        {
            "extender_url": extender["urlPrefix"],
            "http_timeout": extender["httpTimeout"],
            "leader_elect": True,
            "kubeconfig": "",
            "scheduler_name": "",
        },
        Nvidia(nvidia).managed_resources,
    )["extenders"][0]
    assert {**extender, "ignorable": False} == {**ours, "ignorable": False}, "as `hami dev scheduler-config` gives it"
    mounted = {
        volume["configMap"]["name"]
        for kind in ("Deployment", "DaemonSet")
        for volume in pod_spec(objects, kind)["volumes"]
        if volume["name"] == "device-config"
    }
    assert len(mounted) == 1, "scheduler, webhook and plugin read one device configuration"
    old = [item["name"] for item in extender["managedResources"] if item["name"].startswith("nvidia.com/")]
    assert bool(old) is (file != RENAMED)


def test_names_in_a_whole_device_configuration_reach_kube_scheduler() -> None:
    content = "nvidia:\n  resourceCountName: other.example/gpu\n"
    objects = render({"device-config": {"content": content}})
    managed = [item["name"] for item in kube_scheduler_config(objects)["extenders"][0]["managedResources"]]
    assert managed[:2] == ["other.example/gpu", "nvidia.com/gpumem"]


@pytest.mark.parametrize(
    ("value", "flag", "verb"),
    [("allFeasible", "--all-feasible", "prioritizeVerb"), ("preemption", "--preempt", "preemptVerb")],
)
def test_verbs_and_flags_go_together(value: str, flag: str, verb: str) -> None:
    for on in (False, True):
        objects = render({"scheduler": {value: on}})
        assert (flag in container(objects, "Deployment", "vgpu-scheduler-extender")["args"]) is on
        assert (verb in kube_scheduler_config(objects)["extenders"][0]) is on


def test_one_value_for_the_wait_for_a_token_and_the_extenders_time_limit() -> None:
    for value in (10, 30, 60):
        objects = render({"scheduler": {"bindTimeoutSeconds": value}})
        assert kube_scheduler_config(objects)["extenders"][0]["httpTimeout"] == f"{value}s"
        arguments = container(objects, "Deployment", "vgpu-scheduler-extender")["args"][1:]
        assert scheduler.load(arguments, {})[0].node_lock_retry_timeout_s == value - 5


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [
        ("v1.25.0", "v1.25.0"),
        ("v1.31.4-eks-2d5f260", "v1.31.4"),
        ("v1.31.4-gke.1183000", "v1.31.4"),
        ("v1.31.4+k3s1", "v1.31.4"),
        ("v1.30.2+rke2r1", "v1.30.2"),
        ("1.34.1", "v1.34.1"),
        ("v1.33.0-rc.1", "v1.33.0"),
        ("v1.32.5-aliyun.1", "v1.32.5"),
    ],
)
def test_kube_scheduler_is_the_clusters_version(cluster: str, tag: str) -> None:
    objects = render(kube_version=cluster)
    assert container(objects, "Deployment", "kube-scheduler")["image"] == f"registry.k8s.io/kube-scheduler:{tag}"
    assert kube_scheduler_config(objects)["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    minor = int(tag.split(".")[1])
    assert any(each["kind"] == "ValidatingAdmissionPolicy" for each in objects) is (minor >= 30)


def test_older_clusters_are_refused() -> None:
    with pytest.raises(RenderError, match=r"kubeVersion: >=1\.25"):
        render(kube_version="v1.24.9")


def test_lease_is_the_one_that_kube_scheduler_holds() -> None:
    objects = render({"schedulerName": "other"}, namespace="gpu")
    election = kube_scheduler_config(objects)["leaderElection"]
    settings, _ = scheduler.load(container(objects, "Deployment", "vgpu-scheduler-extender")["args"][1:], {})
    assert (settings.lease_name, settings.lease_namespace) == (election["resourceName"], election["resourceNamespace"])


def test_service_monitors_where_the_cluster_has_them() -> None:
    values = {"prometheus": {"enabled": True}}
    assert not [each for each in render(values) if each["kind"] == "ServiceMonitor"]
    objects = render(values, apis=("monitoring.coreos.com/v1",))
    for each in (each for each in objects if each["kind"] == "ServiceMonitor"):
        wanted = each["spec"]["selector"]["matchLabels"]
        services = [s for s in objects if s["kind"] == "Service" and wanted.items() <= s["metadata"]["labels"].items()]
        assert len(services) == 1
        assert each["spec"]["endpoints"][0]["port"] in {port["name"] for port in services[0]["spec"]["ports"]}
