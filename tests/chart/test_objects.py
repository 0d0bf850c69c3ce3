"""What the rendered objects say: to each other, to our own processes, to the cluster's version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.apps.dev import scheduler_config
from hami.config import device_config, device_plugin, monitor, node_config, scheduler
from hami.core import keys
from hami.vendors.nvidia import names
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.chart.rendering import (
    CHART,
    CI_VALUES,
    UPSTREAM_VALUES,
    Object,
    RenderError,
    all_containers,
    container,
    images,
    one,
    pod_spec,
    render,
)

ALL_VALUES = [CHART / "values.yaml", UPSTREAM_VALUES, *CI_VALUES]
RENAMED = CHART / "ci" / "renamed-values.yaml"
every_file = pytest.mark.parametrize("file", ALL_VALUES, ids=lambda path: path.stem)


def config_of(objects: list[Object], suffix: str, key: str) -> str:
    found = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1
    return str(found[0]["data"][key])


def kube_scheduler_config(objects: list[Object]) -> Object:
    config: Object = yaml.safe_load(config_of(objects, "-scheduler", "config.yaml"))
    return config


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


def test_lease_is_the_one_that_kube_scheduler_holds() -> None:
    objects = render({"schedulerName": "other"}, namespace="gpu")
    election = kube_scheduler_config(objects)["leaderElection"]
    settings, _ = scheduler.load(container(objects, "Deployment", "vgpu-scheduler-extender")["args"][1:], {})
    assert (settings.lease_name, settings.lease_namespace) == (election["resourceName"], election["resourceNamespace"])


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


def test_service_monitors_where_the_cluster_has_them() -> None:
    values = {"prometheus": {"enabled": True}}
    assert not [each for each in render(values) if each["kind"] == "ServiceMonitor"]
    objects = render(values, apis=("monitoring.coreos.com/v1",))
    for each in (each for each in objects if each["kind"] == "ServiceMonitor"):
        wanted = each["spec"]["selector"]["matchLabels"]
        services = [s for s in objects if s["kind"] == "Service" and wanted.items() <= s["metadata"]["labels"].items()]
        assert len(services) == 1
        assert each["spec"]["endpoints"][0]["port"] in {port["name"] for port in services[0]["spec"]["ports"]}
