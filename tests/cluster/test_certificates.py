"""A certificate renewed while kube-apiserver calls the webhook for each pod: with failure policy Fail none may fail."""

from __future__ import annotations

import base64
import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from hami.certs import kept
from tests.cluster import results
from tests.cluster.api import ApiError
from tests.cluster.components import HAMI
from tests.cluster.controlplane import MANIFESTS, ControlPlane
from tests.cluster.processes import PATIENCE_S, Process, free_ports, wait_until

SECRET = "/api/v1/namespaces/kube-system/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
PODS = "/api/v1/namespaces/default/pods"
NAME = "renewed-webhook"
RENEWAL_S = 240.0


@pytest.fixture
def running(plane: ControlPlane) -> ControlPlane:
    plane.start()
    return plane


def configuration(url: str) -> dict[str, Any]:
    webhook = {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    return {**kind, "metadata": {"name": NAME}, "webhooks": [webhook]}


def a_pod(number: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}
    container = {"name": "c", "image": "none", "resources": {"limits": limits}}
    meta = {"name": f"renewed-{number}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def state(plane: ControlPlane) -> kept.Kept:
    return kept.from_data(plane.api.get(f"{SECRET}/hami-renewed")["data"])


def test_renewal_under_pod_creations(running: ControlPlane, tmp_path: Path) -> None:
    api = running.api
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=20)
    old = kept.make_first(["127.0.0.1"], began, 1)
    data = {file: text for file, text in kept.to_data(old).items() if text}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hami-renewed"}, "data": data}
    api.post(SECRET, secret)
    ports = free_ports(2)
    api.post(CONFIGURATIONS, configuration(f"https://127.0.0.1:{ports[0]}/webhook"))
    replicas = [replica(running, tmp_path, port) for port in ports]
    for each in replicas:
        each.start()
    try:
        wait_until(lambda: all(synced(each) for each in replicas), PATIENCE_S, "both replicas ready")
        wait_until(lambda: bundle(running), PATIENCE_S, "a published bundle")
        wait_until(lambda: is_asked(running), PATIENCE_S, "kube-apiserver trusts the webhook")
        failures, created, renewed_at = [], 0, 0.0
        began_s = time.monotonic()
        while not renewed_at or time.monotonic() < renewed_at + 5:
            assert time.monotonic() < began_s + RENEWAL_S, "the certificate was not renewed"
            try:
                answer = api.post(PODS, a_pod(created))
                assert answer["spec"]["schedulerName"] == "hami-scheduler", "the webhook was asked"
                created += 1
            except ApiError as error:
                failures.append(str(error))
            if not renewed_at and state(running).cert != old.cert:
                renewed_at = time.monotonic()
        what = f"renewed after {renewed_at - began_s:.1f} s (5 s of them settling) under {created} pod creations"
        results.note("certificates, failure policy Fail", what, f"{len(failures)} failed")
        assert failures == []
        wait_until(lambda: settled(running), PATIENCE_S, "nothing is left to renew, and the bundle says so")
        # Negative control: kube-apiserver does verify. Without replicas to put it right, another authority fails calls.
        for each in replicas:
            each.kill()
        replicas.append(lone := replica(running, tmp_path, ports[0], keeps=False))
        lone.start()
        wait_until(lambda: synced(lone), PATIENCE_S, "a replica that keeps nothing")
        set_bundle(running, old.trusted)
        wait_until(lambda: refused(running), PATIENCE_S, "a call that fails for its certificate")
    finally:
        for each in replicas:
            each.kill()
        api.delete(f"{CONFIGURATIONS}/{NAME}")


def replica(plane: ControlPlane, folder: Path, port: int, *, keeps: bool = True) -> Process:
    command = [str(HAMI), "scheduler", f"--kubeconfig={plane.admin_kubeconfig}", f"--http_bind=127.0.0.1:{port}"]
    command += [f"--device-config-file={MANIFESTS / 'device-config.yaml'}", "--metrics-bind-address="]
    command += ["--tls-secret=kube-system/hami-renewed", "--certificate-settle=5s"]
    if keeps:
        command += ["--certificate-host=127.0.0.1", f"--webhook-configuration={NAME}"]
    return Process(f"replica-{port}-{keeps}", command, folder / f"{port}-{keeps}.log")


def synced(process: Process) -> bool:
    process.require_alive()
    return "synced" in process.said()


def is_asked(plane: ControlPlane) -> bool:
    """Whether the webhook is asked about a pod, and trusted. Raises ApiError where the pod would be refused."""
    return bool(plane.api.post(f"{PODS}?dryRun=All", a_pod(0))["spec"]["schedulerName"] == "hami-scheduler")


def bundle(plane: ControlPlane) -> bytes:
    found = plane.api.get(f"{CONFIGURATIONS}/{NAME}")["webhooks"][0]["clientConfig"]
    return base64.b64decode(found.get("caBundle", ""))


def settled(plane: ControlPlane) -> bool:
    now = state(plane)
    return not now.next_cert and bundle(plane) == now.trusted


def set_bundle(plane: ControlPlane, pem: bytes) -> None:
    webhooks = plane.api.get(f"{CONFIGURATIONS}/{NAME}")["webhooks"]
    webhooks[0]["clientConfig"]["caBundle"] = base64.b64encode(pem).decode()
    plane.api.merge_patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": webhooks})


def refused(plane: ControlPlane) -> bool:
    try:
        plane.api.post(PODS, {**a_pod(0), "metadata": {"generateName": "refused-"}})
    except ApiError as error:
        return "certificate" in str(error)
    return False
