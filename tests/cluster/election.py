"""kube-scheduler's leader election as tests need it: quick, with the rights that follow it, and hosts of any name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.cluster.api import Api
from tests.cluster.processes import Process

T = TypeVar("T")
LEASE_S = 8
ELECTION = f"""leaderElection:
  leaderElect: true
  resourceName: kube-scheduler
  resourceNamespace: kube-system
  leaseDuration: {LEASE_S}s
  renewDeadline: 6s
  retryPeriod: 1s"""
NONE = "leaderElection:\n  leaderElect: false"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hami-leader"}
RULE = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["kube-scheduler"]}


def with_election(config: Path) -> str:
    """The configuration of a kube-scheduler that is elected."""
    text = config.read_text()
    assert NONE in text
    return text.replace(NONE, ELECTION)


def let_hami_follow(api: Api) -> None:
    """The right to read kube-scheduler's lease, as the chart gives it."""
    rule = {**RULE, "verbs": ["get", "list", "watch"]}
    api.post(f"{RBAC}/roles", {"metadata": {"name": "hami-leader"}, "rules": [rule]})
    account = {"kind": "ServiceAccount", "name": "hami-scheduler", "namespace": "hami-system"}
    binding = {"metadata": {"name": "hami-leader"}, "roleRef": ROLE, "subjects": [account]}
    api.post(f"{RBAC}/rolebindings", binding)


def kept_up(process: Process, probe: Callable[[], T]) -> Callable[[], T]:
    """The probe, after what kubelet does: a kube-scheduler that loses its lease ends, by chance on a busy machine."""

    def looked() -> T:
        if not process.alive:
            process.start()
        return probe()

    return looked


def on_host(host: str, process: Process, log: Path, replaced: Mapping[str, str]) -> Process:
    """The same program as if it ran on a machine called `host`, with these texts of its command line replaced."""
    command = process.command
    for old, new in replaced.items():
        command = [part.replace(old, new) for part in command]
    own = ["unshare", "--uts"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--uts"]
    return Process(f"{process.name}-{host}", [*own, "sh", "-c", 'hostname "$0" && exec "$@"', host, *command], log)
