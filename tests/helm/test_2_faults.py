"""While the chart is installed: certificates change, leaders die, the node starts anew. Tenants go on."""

from __future__ import annotations

import base64
import datetime
import json
import time
from collections.abc import Mapping
from pathlib import Path

from hami.certs import kept
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.cluster.results import note
from tests.helm import tenant
from tests.helm.cluster import NAME, NAMESPACE, WAIT, User
from tests.helm.node import Machine
from tests.helm.release import SETTLE_S
from tests.helm.tenant import admitted, report_so_far

SCHEDULER = f"{NAME}-scheduler"
RENEWAL_LIMIT_S = 300
ASKED = 10


def scheduler_pods(user: User) -> list[str]:
    """Names of the scheduler's pods."""
    pods = user.items("pods", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/component=hami-scheduler")
    return [pod["metadata"]["name"] for pod in pods]


def leader(user: User) -> str:
    """The scheduler pod that leads: kube-scheduler's lease names its host."""
    lease = user.get("lease", "hami-scheduler", "--namespace", NAMESPACE)
    holder = str(lease["spec"]["holderIdentity"]).split("_")[0]
    return holder if holder in scheduler_pods(user) else ""


def test_the_leader_is_killed_and_the_other_takes_over(user: User, cards: Path) -> None:
    before = wait_until(lambda: leader(user), PATIENCE_S, "a leader", 0.2)
    user.apply(tenant.pod("before", cards, {"gpu": 1, "gpumem": 500}))
    user.wait_phase("Running", "before")
    user.kubectl("delete", "pod", before, "--namespace", NAMESPACE, "--force", "--grace-period=0")
    started = time.monotonic()
    user.apply_stubbornly(*(tenant.pod(f"after-{index}", cards, {"gpu": 1, "gpumem": 500}) for index in range(5)))
    user.wait_phase("Running", *(f"after-{index}" for index in range(5)))
    note("Faults", "leader killed: five new pods run after", f"{time.monotonic() - started:.1f} s")
    wait_until(lambda: leader(user) not in ("", before), PATIENCE_S, "another leader", 0.2)
    assert user.phase("before") == "Running"
    user.kubectl("rollout", "status", f"deployment/{SCHEDULER}", "--namespace", NAMESPACE, WAIT)
    user.delete("before", *(f"after-{index}" for index in range(5)))


def test_the_certificate_is_renewed_while_pods_are_created(user: User, installed: float, cards: Path) -> None:
    """A certificate that is past two thirds of its life is put into the Secret; every pod meets a trusted webhook."""
    old = secret_of(user)
    aged = kept.make_first(hosts_of(user), datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=8), 10)
    patch_secret(user, {"ca.crt": aged.trusted + old["ca.crt"]})
    wait_until(lambda: aged.trusted.strip() in trusted_of(user), PATIENCE_S, "the webhook trusts both", 0.2)
    patch_secret(user, {"tls.crt": aged.cert, "tls.key": aged.key})
    asked, started = 0, time.monotonic()
    while secret_of(user)["tls.crt"] in (old["tls.crt"], aged.cert):
        assert time.monotonic() < started + RENEWAL_LIMIT_S, "no renewal"
        assert admitted(user, cards) == "hami-scheduler"
        asked += 1
    renewed = time.monotonic() - started
    while time.monotonic() < started + renewed + SETTLE_S or asked < ASKED:
        assert admitted(user, cards) == "hami-scheduler"
        asked += 1
    note("Faults", f"certificate renewed under {asked} pod creations, all admitted, after", f"{renewed:.1f} s")
    user.apply(tenant.pod("renewed", cards, {"gpu": 1, "gpumem": 500}))
    user.wait_phase("Running", "renewed")
    user.delete("renewed")


def secret_of(user: User) -> dict[str, bytes]:
    """What the Secret of the certificate holds."""
    found = user.get("secret", f"{SCHEDULER}-tls", "--namespace", NAMESPACE)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


def patch_secret(user: User, data: Mapping[str, bytes]) -> None:
    """Changes parts of it."""
    texts = {key: base64.b64encode(value).decode() for key, value in data.items()}
    user.kubectl(
        "patch", "secret", f"{SCHEDULER}-tls", "--namespace", NAMESPACE, f"--patch={json.dumps({'data': texts})}"
    )


def trusted_of(user: User) -> bytes:
    """Authorities that kube-apiserver trusts for the webhook."""
    found = user.get("mutatingwebhookconfiguration", f"{NAME}-webhook")
    return base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"])


def hosts_of(user: User) -> list[str]:
    """Names and addresses that the scheduler's certificate is for, as the chart says them."""
    pod = user.get("deployment", SCHEDULER, "--namespace", NAMESPACE)["spec"]["template"]["spec"]
    [arguments] = [each["args"] for each in pod["containers"] if each["name"] == "vgpu-scheduler-extender"]
    return [each.partition("=")[2] for each in arguments if each.startswith("--certificate-host=")]


def test_the_node_starts_anew(user: User, machine: Machine, cards: Path) -> None:
    """Power is lost: every process and container ends, and all starts from what is on disk."""
    share = tenant.container("c", {"gpu": 1, "gpumem": 2000}, tenant.FILL)
    template = {"metadata": {"labels": {"app": "stays"}}, "spec": tenant.spec(cards, share)}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "stays"}}, "template": template}
    user.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": tenant.meta("stays"), "spec": spec})
    user.kubectl("rollout", "status", "deployment/stays", WAIT)
    started = time.monotonic()
    machine.node.reboot()
    for what in (f"deployment/{SCHEDULER}", f"daemonset/{NAME}-device-plugin"):
        user.kubectl("rollout", "status", what, "--namespace", NAMESPACE, WAIT)
    wait_until(lambda: len(filled_pods(user)) == 2, 2 * PATIENCE_S, "both tenants filled their shares again", 0.5)
    note("Faults", "node started anew: two tenants run again after", f"{time.monotonic() - started:.1f} s")
    user.audit()
    user.apply_stubbornly(tenant.pod("newcomer", cards, {"gpu": 1, "gpumem": 500}))
    user.wait_phase("Running", "newcomer")
    user.delete("newcomer")
    user.kubectl("delete", "deployment", "stays", "--cascade=foreground")
    wait_until(lambda: not user.items("pods", "--selector=app=stays"), PATIENCE_S, "its pods gone", 0.3)


def filled_pods(user: User) -> list[str]:
    """Running pods of the deployment whose program saw its limit. Others may have failed: kubelet refuses a pod that
    comes back before its device plugin has, and the deployment makes another."""
    pods = user.items("pods", "--selector=app=stays", "--field-selector=status.phase=Running")
    ready = [
        pod for pod in pods if all(each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": 0}]))
    ]
    names = [pod["metadata"]["name"] for pod in ready if "deletionTimestamp" not in pod["metadata"]]
    return [name for name in names if report_so_far(user, name).get("limit_mib") == 2000]


def test_no_call_of_ours_was_forbidden(machine: Machine) -> None:
    """Rights are as small as they can be and no smaller; the scheduler may not patch pods and goes on without."""
    assert [call for call in machine.refused_calls() if call != f"{SCHEDULER} patch pods"] == []
