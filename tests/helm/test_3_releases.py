"""Upgrade, rollback, uninstall, install again: pods with shares keep running, and in the end nothing is left."""

from __future__ import annotations

import contextlib
import time
from concurrent import futures
from pathlib import Path

import pytest

from tests.cluster.processes import PATIENCE_S, wait_until
from tests.cluster.results import note
from tests.helm import tenant
from tests.helm.cluster import CARD_MIB, CHART, NAMESPACE, PROFILE, RELEASE, WAIT, CommandError, User
from tests.helm.node import Machine
from tests.helm.release import install
from tests.helm.tenant import admitted, report_of

MIB = 3000
VGPU = Path("/usr/local/vgpu")


@pytest.fixture(scope="module")
def running(user: User, installed: float, cards: Path) -> str:
    """A pod that holds a share through the whole life of releases."""
    user.apply(tenant.pod("keeps", cards, {"gpu": 1, "gpumem": MIB}, tenant.FILL))
    user.wait_phase("Running", "keeps")
    return "keeps"


def restarts(user: User, name: str) -> int:
    """How often its container was started anew."""
    return int(user.pod(name)["status"]["containerStatuses"][0]["restartCount"])


def restart_container(user: User, name: str) -> None:
    """Ends the container's program; the kubelet starts it again, and it finds its limit."""
    before = restarts(user, name)
    with contextlib.suppress(CommandError):  # the shell may die with the container
        user.kubectl("exec", name, "--", "sh", "-c", "kill 1")
    wait_until(lambda: restarts(user, name) > before and user.pod(name)["status"]["containerStatuses"][0]["ready"],
               PATIENCE_S, "the container anew", 0.3)  # fmt: skip
    assert report_of(user, name)["limit_mib"] == MIB


def runs(user: User, cards: Path, name: str) -> None:
    """A new pod with a share runs."""
    user.apply_stubbornly(tenant.pod(name, cards, {"gpu": 1, "gpumem": 500}))
    user.wait_phase("Running", name)
    user.delete(name)


def test_helm_upgrade(user: User, running: str, cards: Path) -> None:
    """All our pods are replaced. Pods can be created all the while: some scheduler always answers the webhook."""
    before = restarts(user, running)
    changes = [
        "--set=scheduler.kubeScheduler.extraNewArgs={--config=/config/config.yaml,-v=2}",
        "--set-string=devicePlugin.podAnnotations.round=2",
    ]
    with futures.ThreadPoolExecutor(1) as pool:
        upgrade = pool.submit(install, user, "upgrade", "--reset-then-reuse-values", *changes)
        asked = 0
        while not asked or not upgrade.done():
            assert admitted(user, cards) == "hami-scheduler"
            asked += 1
        upgrade.result()
    note("Releases", f"upgrade under {asked} pod creations", "all admitted")
    assert restarts(user, running) == before
    runs(user, cards, "after-upgrade")
    restart_container(user, running)


def test_helm_rollback(user: User, running: str, cards: Path) -> None:
    before = restarts(user, running)
    user.helm("rollback", RELEASE, "1", "--wait", WAIT)
    assert restarts(user, running) == before
    runs(user, cards, "after-rollback")


def test_helm_uninstall_leaves_running_pods_alone_and_others_free(user: User, running: str, cards: Path) -> None:
    before = restarts(user, running)
    user.helm("uninstall", RELEASE, "--wait", WAIT)
    assert restarts(user, running) == before
    assert user.phase(running) == "Running"
    restart_container(user, running)
    user.apply_stubbornly(tenant.pod("plain", cards, {}))
    user.wait_phase("Running", "plain")
    user.delete("plain")
    wait_until(lambda: nothing(leftover_objects(user)), PATIENCE_S, "the release's objects gone", 0.3)


def nothing(left: list[str]) -> bool:
    """True for an empty list; else an AssertionError that names what is left."""
    assert left == []
    return True


def leftover_objects(user: User) -> list[str]:
    """Objects of the release that are still there."""
    kinds = (
        "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,"
        "validatingadmissionpolicybindings,clusterroles,clusterrolebindings,runtimeclasses"
    )
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    ours = user.items(kinds, selector) + user.items("all,secrets,configmaps,roles,leases", "-n", NAMESPACE, selector)
    return [f"{each['kind']}/{each['metadata']['name']}" for each in ours]


def test_installed_again_it_counts_who_was_there(user: User, running: str, cards: Path) -> None:
    started = time.monotonic()
    install(user)
    runs(user, cards, "after-all")
    note("Installing", "install again to a running GPU pod", f"{time.monotonic() - started:.1f} s")
    held = user.card_of(running)
    user.apply(*(tenant.pod(f"most-{index}", cards, {"gpu": 1, "gpumem": CARD_MIB - MIB + 1}) for index in range(2)))
    wait_until(
        lambda: sorted(user.phase(f"most-{index}") for index in range(2)) == ["Pending", "Running"],
        PATIENCE_S,
        "one of two",
        0.3,
    )
    assert held not in {user.card_of(f"most-{i}") for i in range(2) if user.phase(f"most-{i}") == "Running"}
    user.delete("most-0", "most-1")


def test_nothing_is_left_once_the_last_share_ended(user: User, running: str, machine: Machine) -> None:
    user.helm("uninstall", RELEASE, "--wait", WAIT)
    values = ["--set=global.imageRegistry=localhost", f"--set=devicePlugin.simulate={PROFILE}"]
    user.helm("install", "cleanup", str(CHART.parent / "hami-cleanup"), *values)
    selector = ("pods", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/name=hami-cleanup")
    wait_until(lambda: "holds a share" in logs(user), PATIENCE_S, "it sees the share", 0.3)
    assert (VGPU / "vgpu-info").exists(), "a container that starts again needs the library"
    restart_container(user, running)
    user.delete(running)
    wait_until(lambda: user.items(*selector)[0]["status"]["containerStatuses"][0]["ready"], PATIENCE_S, "clean", 0.3)
    user.helm("uninstall", "cleanup", "--wait")
    wait_until(lambda: nothing([*leftovers(user), *leftover_objects(user), *leftover_files()]), PATIENCE_S, "all gone")


def leftover_files() -> list[str]:
    """What is still on the node."""
    left = [
        str(path) for path in (VGPU, Path("/tmp/vgpulock")) if path.exists() and (path == VGPU or any(path.iterdir()))
    ]
    left += [
        str(path) for folder in ("/var/run/cdi", "/var/lib/kubelet/device-plugins") for path in ours_in(Path(folder))
    ]
    return left


def logs(user: User) -> str:
    """What the clean-up says."""
    selector = "--selector=app.kubernetes.io/name=hami-cleanup"
    try:
        return user.kubectl("logs", selector, "--namespace", NAMESPACE)
    except CommandError:
        return ""


def leftovers(user: User) -> list[str]:
    """Keys of ours on the node."""
    metadata = user.node()["metadata"]
    return [key for key in (*metadata.get("annotations", {}), *metadata.get("labels", {})) if "hami.io" in key]


def ours_in(folder: Path) -> list[Path]:
    """Files there that are not the kubelet's."""
    return [path for path in folder.glob("*") if "kubelet" not in path.name and path.name != "DEPRECATION"]
