"""Who leads: kube-scheduler's Lease followed by watch, by live reads, and to its expiry; the label that tells it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core.errors import NotFoundError
from hami.core.keys import SCHEDULER_ROLE_LABEL
from hami.core.objects import ObjectMeta
from hami.kube import paths
from hami.kube.client import MERGE_PATCH, ApiClient
from hami.kube.leader import Leadership
from hami.kube.lease import Lease, LeaseSpec, ObservedLease
from hami.kube.role_label import RoleLabel
from hami.kube.writer import KubeWriter
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.kube.objects import make_pod
from tests.tools.running import running
from tests.tools.waiting import until, until_answered

SPACE, NAME = "kube-system", "hami-scheduler"


def lease(holder: str | None, renewed: str = "t1", *, version: int = 1, uid: str = "u") -> Lease:
    return Lease(ObjectMeta(name=NAME, uid=uid, resource_version=str(version)), LeaseSpec(holder, 15, renewed))


@pytest.mark.parametrize(
    ("holder", "host"),
    [
        ("a-1_0a1b2c3d-0000", "a-1"),
        ("a-10_0a1b2c3d-0000", "a-10"),
        ("odd_host_uuid", "odd_host"),
        ("nameonly", "nameonly"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_host_of_a_holder_is_everything_before_the_last_underscore(holder: str | None, host: str) -> None:
    observed = ObservedLease()
    observed.take(lease(holder), 0.0)
    assert observed.holder_host == host


def test_a_lease_lives_from_the_moment_its_renewal_was_seen_whatever_its_stamp_says() -> None:
    observed = ObservedLease()
    observed.take(lease("a_1", "2001-01-01T00:00:00Z"), 100.0)
    assert observed.valid_until_s == 115.0
    observed.take(lease("a_1", "2001-01-01T00:00:00Z", version=2), 110.0)
    assert observed.valid_until_s == 115.0, "nothing was renewed"
    observed.take(lease("a_1", "2001-01-01T00:00:05Z", version=3), 112.0)
    assert observed.valid_until_s == 127.0
    observed.take(lease("b_1", "2001-01-01T00:00:05Z", version=2), 113.0)
    assert observed.holder == "a_1", "an older state came late"
    observed.take(lease("b_1", "t", version=1, uid="made anew"), 114.0)
    assert (observed.holder, observed.valid_until_s) == ("b_1", 129.0)
    observed.lose()
    assert (observed.holder, observed.valid_until_s) == ("", 0.0)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Follower:
    """A Leadership with what it said."""

    def __init__(self, client: ApiClient, host: str = "a-1") -> None:
        self.changes: list[bool] = []
        self.clock = Clock()
        self.leadership = Leadership(client, SPACE, NAME, host, self.changes.append, self.clock)

    async def until(self, *, leads: bool) -> None:
        await until(lambda: self.leadership.leads == leads, f"leads: {leads}")


async def hold(client: ApiClient, holder: str, renewed: str = "2026-01-01T00:00:00.000000Z") -> None:
    """Makes or renews the Lease."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    path = paths.lease(SPACE, NAME)
    try:
        await client.request("PATCH", path, msgspec.json.encode({"spec": spec}), MERGE_PATCH)
    except NotFoundError:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}
        await client.request("POST", paths.leases_in(SPACE), msgspec.json.encode(body))


async def test_leads_exactly_while_its_own_host_holds_the_lease(client: ApiClient) -> None:
    follower = Follower(client)
    async with running(follower.leadership.run()):
        for holder, leads in (("a-10_u", False), ("a-1_u", True), ("a_u", False), ("a-1_v", True), ("xa-1_u", False)):
            await hold(client, holder)
            await follower.until(leads=leads)
    assert follower.changes == [True, False, True, False]


async def test_a_lease_that_is_not_renewed_is_lost_and_renewal_wins_it_back(client: ApiClient) -> None:
    follower = Follower(client)
    await hold(client, "a-1_u")
    async with running(follower.leadership.run()):
        await until(lambda: follower.leadership.leads, "leading")
        follower.clock.now_s += 14
        assert follower.leadership.leads
        follower.clock.now_s += 2
        assert not follower.leadership.leads
        assert "has expired" in await follower.leadership.refusal()
        await hold(client, "a-1_u", "2026-01-01T00:00:16.000000Z")
        assert await follower.leadership.refusal() == ""
    assert follower.changes == [True, False, True]


async def test_a_request_that_comes_before_the_watch_is_answered_after_one_live_read(
    api: ApiServer, client: ApiClient
) -> None:
    """The watch is not running at all here: only reads tell."""
    follower = Follower(client)
    assert "nobody holds" in await follower.leadership.refusal()
    await hold(client, "b_u")
    assert "held by b_u" in await follower.leadership.refusal()
    await hold(client, "a-1_u")
    reads = sum(seen.verb == "get" and seen.resource == "leases" for seen in api.seen)
    assert await asyncio.gather(*(follower.leadership.refusal() for _ in range(20))) == [""] * 20
    assert await follower.leadership.refusal() == ""
    assert sum(seen.verb == "get" and seen.resource == "leases" for seen in api.seen) == reads + 1


async def test_a_lease_that_cannot_be_read_is_no_leadership(api: ApiServer, client: ApiClient) -> None:
    await hold(client, "a-1_u")
    api.faults.add(Fault("internal-error", verb="get", resource="leases", times=1))
    follower = Follower(client)
    assert "cannot be read" in await follower.leadership.refusal()
    assert await follower.leadership.refusal() == ""


async def test_a_deleted_lease_ends_leadership(client: ApiClient) -> None:
    follower = Follower(client)
    await hold(client, "a-1_u")
    async with running(follower.leadership.run()):
        await until(lambda: follower.leadership.leads, "leading")
        await client.request("DELETE", paths.lease(SPACE, NAME))
        await until(lambda: not follower.leadership.leads, "not leading")


async def test_a_role_label_that_somebody_took_away_is_written_again(client: ApiClient) -> None:
    """Ours only, and not at the speed of whoever takes it away; a change of the role itself does not wait."""
    label = RoleLabel(KubeWriter(client), "default", "me", pause_s=0.2)
    for name in ("me", "other"):
        await make_pod(client, name, labels={"app": "hami"})
    label.saw(await KubeWriter(client).get_pod("default", "me"))
    label.set(True)
    async with running(label.run()):
        await until_answered(lambda: labelled(client, "me", "leader"), "the label")
        for wrong in (None, "follower"):
            await label_pod(client, "me", wrong)
            label.saw(await KubeWriter(client).get_pod("default", "other"))
            label.saw(await KubeWriter(client).get_pod("default", "me"))
            await until_answered(lambda: labelled(client, "me", "leader"), "the label, again")
        assert await labelled(client, "other", "")

    idle = RoleLabel(KubeWriter(client), "default", "me")
    idle.saw(await KubeWriter(client).get_pod("default", "other"))
    assert not idle._news.is_set(), "it has no role yet"
    idle.set(True)
    idle._news.clear()
    for pod in ("me", "other"):
        idle.saw(await KubeWriter(client).get_pod("default", pod))
    assert not idle._news.is_set(), "the label is right, and another's is not ours"

    slow = RoleLabel(KubeWriter(client), "default", "me", pause_s=3600)
    slow.set(True)
    async with running(slow.run()):
        await until_answered(lambda: labelled(client, "me", "leader"), "the label")
        await label_pod(client, "me", None)
        slow.saw(await KubeWriter(client).get_pod("default", "me"))
        slow.set(False)
        await until_answered(lambda: labelled(client, "me", "follower"), "another role")


async def labelled(client: ApiClient, name: str, role: str) -> bool:
    return (await KubeWriter(client).get_pod("default", name)).labels.get(SCHEDULER_ROLE_LABEL, "") == role


async def label_pod(client: ApiClient, name: str, role: str | None) -> None:
    body = msgspec.json.encode({"metadata": {"labels": {SCHEDULER_ROLE_LABEL: role}}})
    await client.request("PATCH", paths.pod("default", name), body, MERGE_PATCH)


async def test_the_role_label_is_written_again_until_it_holds(api: ApiServer, client: ApiClient) -> None:
    label = RoleLabel(KubeWriter(client), "default", "me", first_retry_s=0.01)
    label.set(True)
    async with running(label.run()):
        await until(lambda: any(seen.verb == "patch" and seen.code == 404 for seen in api.seen), "a failed write")
        await make_pod(client, "me", labels={"app": "hami"})

        async def role() -> str:
            return (await KubeWriter(client).get_pod("default", "me")).labels.get(SCHEDULER_ROLE_LABEL, "")

        async with asyncio.timeout(60):
            while await role() != "leader":  # noqa: ASYNC110 - polls the API server
                await asyncio.sleep(0.01)
            label.set(False)
            while await role() != "follower":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (await KubeWriter(client).get_pod("default", "me")).labels["app"] == "hami"
