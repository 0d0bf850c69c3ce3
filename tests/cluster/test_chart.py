"""The chart on a real kube-apiserver: every object is taken, the policy decides, certificates are kept, rights suffice.

No images run here: kubelet and containers of the installed chart are the node layer's.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import helm_tool
from tests.chart.rendering import CHART, UPSTREAM_VALUES, helm
from tests.cluster.components import HAMI
from tests.cluster.controlplane import ControlPlane, KubectlError
from tests.cluster.election import kept_up
from tests.cluster.processes import PATIENCE_S, Process, free_ports, wait_until

NAMESPACE = "gpu-system"
RELEASE = "gpu"
NAME = "gpu-hami"
SCHEDULER = f"{NAME}-scheduler"
WRITER = f"system:serviceaccount:{NAMESPACE}:{NAME}-device-plugin"
STRANGER = "admin"
KEY = "hami.io/vgpu-devices-allocated"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def run_helm(plane: ControlPlane, *arguments: str) -> str:
    command = [str(helm()), "--kubeconfig", str(plane.admin_kubeconfig), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> ControlPlane:
    if not (helm_tool.folder() / "helm").exists():
        pytest.skip("helm is not in HAMI_CACHE, and this layer has no network: run `make test-chart` once")
    plane.start()
    run_helm(plane, "install", RELEASE, str(CHART), "--create-namespace")
    return plane


def kubeconfig(plane: ControlPlane, account: str) -> Path:
    """As a pod of that account: with a token."""
    token = plane.kubectl("-n", NAMESPACE, "create", "token", account).strip()
    config = yaml.safe_load(plane.admin_kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = plane.folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def charts_scheduler(plane: ControlPlane, folder: Path) -> Process:
    """`hami scheduler` with the chart's own arguments and account; addresses and files are this test's."""
    deployment = plane.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    given = next(each["args"] for each in containers if each["name"] == "vgpu-scheduler-extender")
    ours = ("--http_bind=", "--metrics-bind-address=", "--device-config-file=", "--leader-elect")
    device = folder / "device.yaml"
    maps = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SCHEDULER}-device")
    device.write_text(maps["data"]["device-config.yaml"])
    arguments = [each for each in given if not each.startswith(ours)]
    arguments += [f"--kubeconfig={kubeconfig(plane, SCHEDULER)}", f"--http_bind=127.0.0.1:{free_ports(1)[0]}"]
    arguments += ["--metrics-bind-address=", f"--device-config-file={device}"]
    return Process("charts-scheduler", [str(HAMI), *arguments], folder / "hami.log")


def pod(name: str, **annotations: str) -> str:
    meta = {
        "name": name,
        "namespace": "default",
        "annotations": {k.replace("__", "/"): v for k, v in annotations.items()},
    }
    meta["labels"] = {"hami.io/webhook": "ignore"}
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def test_upstreams_values_are_taken_too(installed: ControlPlane) -> None:
    settings = ["--set", "scheduler.service.type=ClusterIP,devicePlugin.service.type=ClusterIP"]
    run_helm(installed, "install", "other", str(CHART), "--dry-run=server", "-f", str(UPSTREAM_VALUES), *settings)


def policy_refuses(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    with pytest.raises(KubectlError) as refused:
        plane.kubectl(*arguments, stdin=stdin)
    return refused.value.stderr


def test_allocation_keys_are_written_by_the_listed_writers_only(installed: ControlPlane) -> None:
    forged = pod("forged", **{KEY: "GPU-1,NVIDIA,1000,0:;"})
    refused = policy_in_force(installed, forged)
    assert f"only HAMi may write {KEY}" in refused
    assert "admissionPolicy.extraWriters" in refused
    installed.kubectl("apply", "-f", "-", stdin=pod("plain"))
    annotate = ("-n", "default", "annotate", "pod", "plain")
    assert "only HAMi may write" in policy_refuses(installed, *annotate, f"{KEY}=x")
    installed.kubectl(*annotate, f"{KEY}=x", f"--as={WRITER}")
    assert "only HAMi may write" in policy_refuses(installed, *annotate, f"{KEY}-")
    installed.kubectl(*annotate, "own.example/note=1")
    installed.kubectl("-n", "default", "delete", "pod", "plain", "--now")


def policy_in_force(plane: ControlPlane, forged: str) -> str:
    """What a forged pod is told, once kube-apiserver has seen the policy: a moment after it is made."""

    def told() -> str:
        text = _refusal(plane, forged)
        assert "only HAMi may write" in text, text
        return text

    return wait_until(told, PATIENCE_S, "the policy in force")


def _refusal(plane: ControlPlane, manifest: str) -> str:
    try:
        plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest)
    except KubectlError as error:
        return error.stderr
    return ""


def test_a_binding_of_a_stranger_carries_no_allocation(installed: ControlPlane) -> None:
    policy_in_force(installed, pod("forged", **{KEY: "x"}))
    installed.kubectl("apply", "-f", "-", stdin=pod("unbound"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "unbound", "annotations": {KEY: "x"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    path = "/api/v1/namespaces/default/pods/unbound/binding"
    text = policy_refuses(installed, "create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    assert "only HAMi may write" in text
    installed.kubectl("-n", "default", "delete", "pod", "unbound", "--now")


def meets_webhook(plane: ControlPlane, annotations: dict[str, str], *containers: dict[str, Any]) -> bool:
    """Whether kube-apiserver asks the webhook, at whose address nobody answers, about such a pod."""
    spec: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for place, resources in zip(("containers", "initContainers"), containers, strict=False):
        spec[place] = [{"name": place.lower(), "image": "none", "resources": resources}]
    meta = {"name": "asked", "namespace": "default", "annotations": annotations}
    told = _refusal(plane, yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))
    assert not told or "failed calling webhook" in told, told
    return bool(told)


def test_b02_pods_without_shares_never_wait_for_the_webhook(installed: ControlPlane) -> None:
    """Report B02: nobody answers, the policy is Fail, and only pods that may be ours notice."""
    run_helm(installed, "upgrade", RELEASE, str(CHART), "--set", "scheduler.admissionWebhook.failurePolicy=Fail")
    share = {"limits": {"nvidia.com/gpumem": "1000"}}
    cpu = {"limits": {"cpu": "1"}, "requests": {"memory": "1Mi"}}
    wait_until(lambda: meets_webhook(installed, {}, share), PATIENCE_S, "the webhook in force")
    assert meets_webhook(installed, {}, cpu, share)
    assert meets_webhook(installed, {}, {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}})
    assert meets_webhook(installed, {"hami.io/anything": "x"}, cpu)
    for resources in (cpu, {}, {"limits": {"amd.com/gpu": "1"}}):
        assert not meets_webhook(installed, {"own.example/note": "x"}, resources, resources)
    assert not meets_webhook(installed, {}, cpu)
    run_helm(installed, "upgrade", RELEASE, str(CHART))


def test_certificate_bundle_and_configuration_are_kept_with_the_charts_arguments_and_rights(
    installed: ControlPlane, tmp_path: Path
) -> None:
    hami = charts_scheduler(installed, tmp_path)
    log = tmp_path / "hami.log"
    hami.start()
    try:
        wait_until(lambda: all(kept(installed)), PATIENCE_S, "a certificate, and its authority in the webhook")
        before = kept(installed)
        path = f"{CONFIGURATIONS}/{NAME}-webhook"
        webhooks = installed.api.get(path)["webhooks"]
        # kopf starts when the lists are read: edits before that are found at its first list.
        webhooks[0]["clientConfig"]["caBundle"] = ""
        installed.api.merge_patch(path, {"webhooks": webhooks})
        wait_until(lambda: kept(installed) == before, PATIENCE_S, "the bundle put back")
        run_helm(installed, "upgrade", RELEASE, str(CHART), "--set", "devicePlugin.deviceMemoryScaling=2")
        wait_until(
            lambda: "device configuration reloaded" in log.read_text(), PATIENCE_S, "the other configuration in force"
        )
        assert kept(installed) == before, "an upgrade leaves the certificate alone"
    finally:
        hami.kill()
    again = charts_scheduler(installed, tmp_path)
    again.start()
    try:
        wait_until(lambda: log.read_text().count("certificate served") >= 2, PATIENCE_S, "the certificate served again")
    finally:
        again.kill()
    assert kept(installed) == before, "who starts later takes what is there"
    assert "forbidden" not in log.read_text().lower()


def kept(plane: ControlPlane) -> tuple[str, str]:
    """The Secret's certificate and the webhook's authority."""
    secret: dict[str, Any] = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{SCHEDULER}-tls")
    webhook: dict[str, Any] = plane.api.get(f"{CONFIGURATIONS}/{NAME}-webhook")["webhooks"][0]
    return secret.get("data", {}).get("tls.crt", ""), webhook["clientConfig"].get("caBundle", "")


def test_kube_scheduler_and_extender_work_with_the_charts_configuration_and_rights(
    installed: ControlPlane, tmp_path: Path
) -> None:
    config = kubeconfig(installed, SCHEDULER)
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SCHEDULER}"
    own = yaml.safe_load(installed.api.get(maps)["data"]["config.yaml"])
    own["clientConnection"] = {"kubeconfig": str(config)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(own))
    (tmp_path / "device.yaml").write_text(installed.api.get(f"{maps}-device")["data"]["device-config.yaml"])
    secure, extender = free_ports(2)
    delegated = [f"--{what}-kubeconfig={config}" for what in ("authentication", "authorization")]
    kube_scheduler = Process(
        "chart-kube-scheduler",
        [
            installed.binaries.path("kube-scheduler"),
            f"--config={tmp_path / 'config.yaml'}",
            f"--secure-port={secure}",
            *delegated,
        ],
        tmp_path / "kube-scheduler.log",
    )
    label = f"app.kubernetes.io/component=hami-scheduler,app.kubernetes.io/instance={RELEASE}"
    pods = wait_until(
        lambda: installed.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=label),
        PATIENCE_S,
        "a scheduler pod",
    )
    ours = pods[0]["metadata"]["name"]
    hami = Process(
        "chart-extender",
        [
            HAMI,
            "scheduler",
            f"--kubeconfig={config}",
            f"--http_bind=http://127.0.0.1:{extender}",
            "--metrics-bind-address=",
            f"--device-config-file={tmp_path / 'device.yaml'}",
            "--leader-elect",
            "--leader-elect-resource-name=hami-scheduler",
            f"--leader-elect-resource-namespace={NAMESPACE}",
            f"--pod-name={ours}",
            f"--pod-namespace={NAMESPACE}",
        ],
        tmp_path / "hami.log",
    )
    kube_scheduler.start()
    hami.start()
    try:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{ours}"

        def leads() -> bool:
            return bool(installed.api.get(path)["metadata"]["labels"].get("hami.io/scheduler-role") == "leader")

        wait_until(
            kept_up(kube_scheduler, leads),
            PATIENCE_S,
            "the extender beside the lease's holder leads",
        )
    finally:
        hami.kill()
        kube_scheduler.kill()
    for log in ("kube-scheduler.log", "hami.log"):
        assert "forbidden" not in (tmp_path / log).read_text().lower()


def test_uninstall_leaves_nothing_that_stops_pods(installed: ControlPlane) -> None:
    run_helm(installed, "uninstall", RELEASE)
    kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies"
    left = installed.kubectl("get", kinds, "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    assert left == ""
    wait_until(lambda: not _refusal(installed, pod("forged", **{KEY: "x"})), PATIENCE_S, "the policy out of force")
    installed.kubectl("apply", "-f", "-", stdin=pod("cpu-only"))
    assert installed.kubectl("-n", NAMESPACE, "get", "secrets", "-o", "name") == ""
