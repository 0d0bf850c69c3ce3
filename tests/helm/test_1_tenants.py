"""After `helm install`: pods with shares run, see their limits and no more, and who finds no room is told why."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import PATIENCE_S, wait_until
from tests.cluster.results import note
from tests.helm import tenant
from tests.helm.cluster import CARD_MIB, CARDS, NAMESPACE, RELEASE, WAIT, CommandError, User
from tests.helm.tenant import report_of

HALF = CARD_MIB // 2
OUT_OF_MEMORY = 2
JOB_PODS = 20
UNLIMITED = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def test_helm_install_and_the_first_pod_with_a_share(user: User, installed: float, cards: Path) -> None:
    user.apply_stubbornly(tenant.pod("first", cards, {"gpu": 1, "gpumem": 1000}))
    user.wait_phase("Running", "first")
    note("Installing", "helm install to first running GPU pod", f"{time.monotonic() - installed:.1f} s")
    user.delete("first")


def test_helm_test_schedules_a_share(user: User, installed: float) -> None:
    assert "Succeeded" in user.helm("test", RELEASE, WAIT)


def test_a_program_sees_its_limit_and_is_refused_beyond_it(user: User, cards: Path) -> None:
    user.apply(tenant.pod("limited", cards, {"gpu": 1, "gpumem": 3000}, tenant.FILL))
    user.wait_phase("Running", "limited")
    report = report_of(user, "limited")
    assert (report["limit_mib"], report["refusal"]) == (3000, OUT_OF_MEMORY)
    assert 2900 <= report["taken_mib"] <= 3000
    said = user.kubectl("exec", "limited", "--", tenant.GUEST_INFO)
    assert "limiting       yes" in said
    assert f"({3000} MiB)" in said


def test_without_the_shim_the_same_program_takes_more(user: User, cards: Path) -> None:
    """The negative control: the limit is the shim's doing, not the driver's."""
    free = tenant.pod("unlimited", cards, {}, tenant.FILL)
    free["spec"]["containers"][0]["env"] = [UNLIMITED]
    free["metadata"]["labels"]["hami.io/webhook"] = "ignore"
    user.apply(free)
    user.wait_phase("Running", "unlimited")
    report = report_of(user, "unlimited")
    assert report["limit_mib"] > CARD_MIB // 2
    assert report["taken_mib"] > CARD_MIB // 2
    user.delete("unlimited", "limited")


def test_two_share_a_card_and_one_too_many_is_told_why(user: User, cards: Path) -> None:
    names = [f"half-{index}" for index in range(2 * CARDS)]
    user.apply(*(tenant.pod(name, cards, {"gpu": 1, "gpumem": HALF}) for name in names))
    user.wait_phase("Running", *names)
    on_cards = [user.card_of(name) for name in names]
    assert sorted(map(on_cards.count, set(on_cards))) == [2] * CARDS
    user.apply(tenant.pod("too-many", cards, {"gpu": 1, "gpumem": HALF}))
    wait_told(user, "too-many", "CardInsufficientMemory")
    assert user.phase("too-many") == "Pending"
    user.delete(names[0])
    user.wait_phase("Running", "too-many")
    user.delete("too-many", *names[1:])


def test_an_exclusive_card_is_shared_with_nobody(user: User, cards: Path) -> None:
    alone = [tenant.pod(f"alone-{index}", cards, {"gpu": 1, "gpucores": 100}) for index in range(CARDS)]
    user.apply(*alone)
    user.wait_phase("Running", *(f"alone-{index}" for index in range(CARDS)))
    assert len({user.card_of(f"alone-{index}") for index in range(CARDS)}) == CARDS
    user.apply(tenant.pod("beside", cards, {"gpu": 1, "gpumem": 100, "gpucores": 1}))
    wait_told(user, "beside", "FilteringFailed")
    assert user.phase("beside") == "Pending"
    user.delete("beside", *(f"alone-{index}" for index in range(CARDS)))


def test_a_percentage_is_of_the_card_that_was_chosen(user: User, cards: Path) -> None:
    user.apply(tenant.pod("quarter", cards, {"gpu": 1, "gpumem-percentage": 25}, tenant.FILL))
    user.wait_phase("Running", "quarter")
    assert report_of(user, "quarter")["limit_mib"] == CARD_MIB // 4
    user.delete("quarter")


def test_init_containers_have_shares_of_their_own(user: User, cards: Path) -> None:
    first = tenant.container("warm-up", {"gpu": 1, "gpumem": 4000}, tenant.FILL_AND_END)
    main = tenant.container("main", {"gpu": 1, "gpumem": 2000}, tenant.FILL)
    spec = tenant.spec(cards, main, initContainers=[first])
    user.apply({"apiVersion": "v1", "kind": "Pod", "metadata": tenant.meta("stages"), "spec": spec})
    user.wait_phase("Running", "stages")
    assert report_of(user, "stages", "warm-up")["limit_mib"] == 4000
    assert report_of(user, "stages", "main")["limit_mib"] == 2000
    user.delete("stages")


def test_a_job_of_twenty(user: User, cards: Path) -> None:
    share = tenant.container("c", {"gpu": 1, "gpumem": 2048}, tenant.FILL_AND_END)
    template = {"metadata": {"labels": {"job": "twenty"}}, "spec": tenant.spec(cards, share, restartPolicy="Never")}
    spec = {"completions": JOB_PODS, "parallelism": JOB_PODS, "backoffLimit": 0, "template": template}
    user.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": tenant.meta("twenty"), "spec": spec})
    user.kubectl("wait", "job/twenty", "--for=condition=Complete", WAIT)
    names = [item["metadata"]["name"] for item in user.items("pods", "--selector=job=twenty")]
    assert [report_of(user, name)["limit_mib"] for name in names] == [2048] * JOB_PODS
    user.kubectl("delete", "job", "twenty", "--cascade=foreground")


def test_a_deployment_follows_its_scale(user: User, cards: Path) -> None:
    share = tenant.container("c", {"gpu": 1, "gpumem": 1000, "gpucores": 10})
    template = {"metadata": {"labels": {"app": "web"}}, "spec": tenant.spec(cards, share)}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    user.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": tenant.meta("web"), "spec": spec})
    for replicas in (2, 8, 1):
        user.kubectl("scale", "deployment/web", f"--replicas={replicas}")
        user.kubectl("rollout", "status", "deployment/web", WAIT)
    user.kubectl("delete", "deployment", "web", "--cascade=foreground")
    wait_until(lambda: not user.items("pods", "--selector=app=web"), PATIENCE_S, "its pods gone", 0.3)


def test_a_namespace_stays_within_its_quota(user: User, cards: Path) -> None:
    quota = {"hard": {"limits.nvidia.com/gpumem": "4000"}}
    user.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": tenant.meta("gpus"), "spec": quota})
    user.apply(tenant.pod("within", cards, {"gpu": 1, "gpumem": 2500}))
    user.wait_phase("Running", "within")
    assert "gpus" in quota_refusal(user, cards)
    user.kubectl("delete", "resourcequota", "gpus")
    user.delete("within", "beyond")


def quota_refusal(user: User, cards: Path) -> str:
    """What a pod is told that would exceed the quota: at its creation, or in its events."""
    try:
        user.apply(tenant.pod("beyond", cards, {"gpu": 1, "gpumem": 2500}))
    except CommandError as error:
        return str(error)
    wait_told(user, "beyond", "ResourceQuotaNotFit")
    return user.kubectl("describe", "pod", "beyond")


def test_a_cordoned_card_takes_no_new_shares(user: User, cards: Path) -> None:
    cordoned, other = user.cards()
    user.apply(tenant.pod("stays", cards, {"gpu": 1, "gpumem": 500, "gpucores": 1}))
    user.wait_phase("Running", "stays")
    user.annotate_node(f"hami.io/device-cordon={cordoned}")
    wait_until(lambda: is_refused_for_cordon(user, cards, cordoned), PATIENCE_S, "the scheduler knows of it")
    user.apply(*(tenant.pod(f"goes-{index}", cards, {"gpu": 1, "gpumem": HALF - 500}) for index in range(2)))
    user.wait_phase("Running", "goes-0", "goes-1")
    assert {user.card_of("goes-0"), user.card_of("goes-1")} == {other}
    user.apply(tenant.pod("waits", cards, {"gpu": 1, "gpumem": HALF}))
    wait_told(user, "waits", "CardCordoned")
    user.annotate_node("hami.io/device-cordon-")
    user.wait_phase("Running", "waits")
    assert user.phase("stays") == "Running"
    user.delete("waits", "stays", "goes-0", "goes-1")


def is_refused_for_cordon(user: User, cards: Path, card: str) -> bool:
    """Whether a pod that may have this card only is told that it is cordoned."""
    asks = tenant.pod("asks", cards, {"gpu": 1, "gpumem": 100, "gpucores": 1})
    asks["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": card}
    user.apply(asks)
    try:
        return wait_told(user, "asks", "CardCordoned", "Successfully binding node") == "CardCordoned"
    finally:
        user.delete("asks")


def wait_told(user: User, name: str, *words: str) -> str:
    """Which of these words `describe` says of the pod, once it says one."""

    def said() -> str:
        text = user.kubectl("describe", "pod", name)
        return next((each for each in words if each in text), "")

    return wait_until(said, PATIENCE_S, f"{' or '.join(words)} said of {name}", 0.3)


@pytest.mark.parametrize("key", ["hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"])
def test_a_forged_allocation_is_refused(user: User, cards: Path, key: str) -> None:
    forged = tenant.pod("forged", cards, {"gpu": 1, "gpumem": 100})
    forged["metadata"]["annotations"] = {key: "GPU-1,NVIDIA,1000,0:;"}
    with pytest.raises(CommandError) as refused:
        user.apply(forged)
    assert key in str(refused.value)


def is_told_of(user: User, error: Mapping[str, Any]) -> bool:
    """Whether it is about a pod that was made anew, because the plugin ran out of time."""
    return error["event"] == "allocate failed" and error["pod"].removeprefix("default/") in user.made_anew


def test_everyone_of_ours_says_that_it_is_well(user: User) -> None:
    """kube-scheduler is not ours: it ends whenever it cannot renew its lease in time, as on a busy machine."""
    pods = user.items("pods", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/instance=gpu")
    restarts = {
        pod["metadata"]["name"]: {
            each["name"]: each["restartCount"]
            for each in pod["status"]["containerStatuses"]
            if each["name"] != "kube-scheduler"
        }
        for pod in pods
    }
    assert not any(any(counts.values()) for counts in restarts.values()), json.dumps(restarts)
    for name in restarts:
        log = user.kubectl("logs", name, "--namespace", NAMESPACE, "--all-containers", "--tail=-1")
        events = [json.loads(line) for line in log.splitlines() if line.startswith('{"')]
        errors = [each for each in events if each["level"] in ("error", "critical")]
        assert [each for each in errors if not is_told_of(user, each)] == []
        assert [each for each in events if each["event"] == "controllers start again"] == []
