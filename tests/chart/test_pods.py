"""Our pods as the chart makes them: images, rights, replicas, places on the host, variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.config import device_plugin
from tests.chart.rendering import (
    CHART,
    UPSTREAM_VALUES,
    all_containers,
    container,
    images,
    one,
    pod_spec,
    render,
)
from tests.chart.whole_charts import every_file, kube_scheduler_config


def test_every_image_can_be_redirected_by_one_value() -> None:
    objects = render(None, CHART / "ci" / "air-gapped-values.yaml")
    assert all(image.startswith("registry.example:5000/mirror/") for image in images(objects))
    for kind in ("Deployment", "DaemonSet"):
        assert pod_spec(objects, kind)["imagePullSecrets"] == [{"name": "mirror"}]


def test_each_image_can_be_set_alone() -> None:
    def own(name: str) -> dict[str, str]:
        return {"registry": "r.example", "repository": name, "tag": "v1.30.0"}

    values = {
        "scheduler": {"extender": {"image": own("s")}, "kubeScheduler": {"image": own("k")}},
        "devicePlugin": {"image": own("p"), "monitor": {"image": own("m")}},
    }
    assert images(render(values)) == {f"r.example/{name}:v1.30.0" for name in "skpm"}


def test_images_txt_lists_every_image() -> None:
    listed = (CHART.parents[1] / "images.txt").read_text().split("\n")
    wanted = {image.replace("v1.34.4", "KUBERNETES_VERSION") for image in images(render())}
    assert {line for line in listed if line and not line.startswith("#")} == wanted


@every_file
def test_containers_run_with_as_little_as_works(file: Path) -> None:
    objects = render(None, file)
    for each in all_containers(pod_spec(objects, "Deployment")):
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
    assert pod_spec(objects, "Deployment")["securityContext"]["runAsNonRoot"] is True
    if file != UPSTREAM_VALUES:
        for each in all_containers(pod_spec(objects, "DaemonSet")):
            assert "privileged" not in each["securityContext"]


def test_low_ports_need_no_root() -> None:
    context = pod_spec(render(None, UPSTREAM_VALUES), "Deployment")["securityContext"]
    assert {"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"} in context["sysctls"]
    assert "sysctls" not in pod_spec(render(), "Deployment")["securityContext"]


def test_simulated_cards_need_no_gpu_node() -> None:
    objects = render(None, CHART / "ci" / "simulated-values.yaml")
    spec = pod_spec(objects, "DaemonSet")
    assert "nodeSelector" not in spec
    assert "runtimeClassName" not in spec
    for each in spec["containers"]:
        assert "--nvml=sim:a100" in each["args"]
        assert not [env for env in each["env"] if env["name"].startswith("NVIDIA_")]


def test_several_replicas_have_a_budget_and_spread() -> None:
    objects = render({"scheduler": {"replicas": 2}})
    one(objects, "PodDisruptionBudget")
    assert one(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    spread = pod_spec(objects, "Deployment")["topologySpreadConstraints"][0]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "an upgrade must not wait for a second node"
    assert not [each for each in render() if each["kind"] == "PodDisruptionBudget"]


def test_without_election_there_is_one_replica() -> None:
    objects = render({"scheduler": {"replicas": 3, "leaderElect": False}})
    assert one(objects, "Deployment")["spec"]["replicas"] == 1
    assert kube_scheduler_config(objects)["leaderElection"]["leaderElect"] is False


def test_host_network_follows_with_dns_and_makes_room_before_a_new_pod() -> None:
    objects = render({"scheduler": {"hostNetwork": True}})
    assert pod_spec(objects, "Deployment")["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert one(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert pod_spec(render(), "Deployment")["dnsPolicy"] == "ClusterFirst"


def test_driver_root_moves_plugin_and_monitor() -> None:
    objects = render({"devicePlugin": {"nvidiaDriverRoot": "/home/kubernetes/bin/nvidia"}})
    for name in ("device-plugin", "vgpu-monitor"):
        each = container(objects, "DaemonSet", name)
        assert "--nvidia-driver-root=/home/kubernetes/bin/nvidia" in each["args"]
        assert "/home/kubernetes/bin/nvidia" in {mount["mountPath"] for mount in each["volumeMounts"]}


@pytest.mark.parametrize(
    ("strategy", "sees_host"), [("envvar", False), ("cdi-cri", True), ("envvar,cdi-annotations", True)]
)
def test_cdi_strategies_let_the_plugin_see_the_hosts_driver(strategy: str, sees_host: bool) -> None:
    plugin = container(render({"devicePlugin": {"deviceListStrategy": strategy}}), "DaemonSet", "device-plugin")
    mounts = {mount["mountPath"]: mount for mount in plugin["volumeMounts"]}
    assert ("--driver-root-ctr-path=/driver-root" in plugin["args"]) is sees_host
    assert ("/driver-root" in mounts) is sees_host
    assert not sees_host or mounts["/driver-root"]["readOnly"]
    settings, ignored = device_plugin.load([*plugin["args"][1:], "--node-name=n"], {})
    assert (settings.driver_root_here, ignored) == ("/driver-root" if sees_host else "/", [])


def test_extra_variables_as_a_list_or_a_mapping() -> None:
    for extra in ([{"name": "A", "value": "1"}], {"A": 1}):
        objects = render({"devicePlugin": {"extraEnvs": extra, "monitor": {"extraEnvs": extra}}})
        for name in ("device-plugin", "vgpu-monitor"):
            assert {"name": "A", "value": "1"} in container(objects, "DaemonSet", name)["env"]
