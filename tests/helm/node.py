"""The node of this layer: `tests.node.onenode` with our images in containerd, and an audit log of refused calls."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import helm_tool
from tests.cluster import build
from tests.helm import prepare
from tests.helm.cluster import NAMESPACE, CommandError, User
from tests.node import cgroups, namespace, tools
from tests.node.onenode import OneNode

HOST_FOLDERS = (Path("/tmp/vgpulock"),)
"""Folders of the host that the chart mounts and that `tests.node.namespace` shares with the machine."""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]},
        {"level": "None"},
    ],
}
LINES_SHOWN = "--tail=40"
EVENTS_SHOWN = 30
RUNNING: list[Machine] = []


@dataclasses.dataclass(slots=True)
class Machine:
    """A running node and who uses it. `cards`: folder that describes the stand-in driver's cards to tenants."""

    node: OneNode
    user: User
    cards: Path

    def refused_calls(self) -> list[str]:
        """Calls of our service accounts that the API server forbade: `account verb resource/subresource`."""
        log = self.node.folder / "audit.log"
        found = set()
        text = log.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():  # the last one may still be on its way
            event = json.loads(line)
            if event.get("responseStatus", {}).get("code") == 403:
                what = event.get("objectRef", {})
                parts = [what.get("resource", event["requestURI"]), what.get("subresource", "")]
                account = event["user"]["username"].rpartition(":")[2]
                found.add(f"{account} {event['verb']} {'/'.join(part for part in parts if part)}")
        return sorted(found)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Machine]:
    """A started node; skips outside of its namespaces, and fails there with CI=true."""
    if namespace.cgroup() is None:
        reason = "run in namespaces of its own: scripts/test_layers.py cluster"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must run the cluster layer: {reason}")
        pytest.skip(reason)
    with _host_folders():
        machine = make(folder)
        RUNNING.append(machine)
        try:
            machine.node.start()
            for image in prepare.images():
                machine.node.containerd.import_image(image.archive)
            yield machine
        finally:
            RUNNING.remove(machine)
            machine.node.stop()


def make(folder: Path) -> Machine:
    """The node, not started."""
    node = OneNode(build.ensure(), tools.ensure(), folder, with_hami=False)
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY))
    node.plane.apiserver.command += [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]
    return Machine(node, User(node.plane.admin_kubeconfig, helm_tool.folder()), folder / "cards")


@contextlib.contextmanager
def _host_folders() -> Iterator[None]:
    """Memory in place of those folders."""
    for folder in HOST_FOLDERS:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        for folder in HOST_FOLDERS:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        remove_host_folders()


def remove_host_folders() -> None:
    """Those folders are gone from the machine, unless something is in them or another node runs that may mount them."""
    groups = [group for top in cgroups.hierarchies() for group in top.glob(f"{namespace.PREFIX}*")]
    if any(group.name != namespace.cgroup() for group in groups):
        return
    for folder in HOST_FOLDERS:
        with contextlib.suppress(OSError):
            folder.rmdir()


def our_logs() -> str:
    """What a person would look at after a failure: pods, the last events, and the ends of our logs."""
    text = []
    for machine in RUNNING:
        user = machine.user
        with contextlib.suppress(CommandError):
            text.append(user.kubectl("get", "pods", "--all-namespaces", "--output=wide"))
            events = user.kubectl("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp")
            text += events.splitlines()[-EVENTS_SHOWN:]
            for pod in user.items("pods", "--namespace", NAMESPACE):
                name = pod["metadata"]["name"]
                log = user.kubectl("logs", name, "--namespace", NAMESPACE, "--all-containers", LINES_SHOWN)
                text.append(f"--- {name}\n{log}")
    return "\n".join(text)
