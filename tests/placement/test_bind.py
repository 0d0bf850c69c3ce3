"""The bind protocol against an API with compare-and-set: what is written, who waits, what a fault leaves behind."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from hami.core import keys
from hami.core.errors import ApiError, ConflictError, HamiError, NotFoundError, TransportError
from hami.core.model import Use
from hami.core.objects import ObjectMeta, Pod, Quantity, ResourceQuota, ResourceQuotaSpec
from hami.core.token import parse_epoch, parse_token
from hami.placement.bind import Binder, BindSettings
from hami.placement.claims import ClaimState
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from tests.placement.fakes import (
    NVIDIA,
    START_UNIX_S,
    FakeApi,
    FakeClock,
    FakeEvents,
    annotated,
    container,
    deleted,
    make_node,
    make_pod,
    make_world,
    with_phase,
)


class Setup:
    """One scheduler over one API."""

    def __init__(self, *, wait_s: float = 3.0, expiry_s: float = 300.0) -> None:
        self.clock = FakeClock()
        self.clock.real = True
        self.world: World = make_world(self.clock)
        self.api = FakeApi(self.world)
        self.events = FakeEvents()
        self.engine = Engine(self.world)
        settings = BindSettings("sched-0", wait_s=wait_s, token_expiry_s=expiry_s, retry_pause_s=0.001)
        self.binder = Binder(self.world, self.api, self.events, self.clock, settings)
        self.api.put_node(make_node("n1"))
        self.api.put_node(make_node("n2"))
        self.names = NodeNames.of(["n1", "n2"])

    def reserve(self, pod: Pod, node: str = "n1") -> Pod:
        pod = self.api.put_pod(pod)
        assert self.engine.filter(pod, NodeNames.of([node])).node == node
        return pod

    async def bind(self, name: str = "p", node: str = "n1", uid: str = "") -> str:
        return await self.binder.bind("default", name, uid or f"uid-{name}", node)

    def lock(self, owner: str, *, age_s: float = 0.0, node: str = "n1") -> str:
        stamp = datetime.datetime.fromtimestamp(self.clock.unix_s() - age_s, datetime.UTC)
        text = f"{stamp:%Y-%m-%dT%H:%M:%SZ}" + (f",default,{owner}" if owner else "")
        self.api.annotate_node(node, lock=text)
        return text

    def strange_epoch(self) -> None:
        """As if another scheduler had written both nodes before."""
        for name in ("n1", "n2"):
            self.api._merge_node(name, {keys.BIND_EPOCH: "sched-1/7"})
        self.api.calls.clear()

    def own_epoch(self) -> None:
        """As if this scheduler had written both nodes before."""
        for name in ("n1", "n2"):
            self.api._merge_node(name, {keys.BIND_EPOCH: self.binder._tokens.epoch})
        self.api.calls.clear()

    def assert_free(self, node: str = "n1") -> None:
        self.world.settle_now()
        assert dict(self.world.ledger.uses(node)) == {}


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def until(condition: object, what: str) -> None:
    """Gives other tasks the loop until `condition()` holds; fails after a second."""
    assert callable(condition)
    async with asyncio.timeout(1.0):
        while not condition():  # noqa: ASYNC110 - polled with a deadline, no event to wait for
            await asyncio.sleep(0.001)


async def test_bind_is_two_writes_with_everything_on_the_binding(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p", container(memory_mib=3000, cores=30), container(count=0)))
    assert await setup.bind() == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "bind"]
    pod = setup.api.pod("p")
    assert pod.spec.node_name == "n1"
    text = "GPU-0,NVIDIA,3000,30:;;"
    now = str(int(START_UNIX_S))
    assert pod.annotations == {
        keys.VGPU_NODE: "n1",
        keys.VGPU_TIME: now,
        keys.BIND_TIME: now,
        keys.BIND_PHASE: "allocating",
        NVIDIA.to_allocate_key: text,
        NVIDIA.allocated_key: text,
    }
    token = parse_token(setup.api.lock("n1"))
    assert (token.namespace, token.pod) == ("default", "p")
    assert setup.events.recorded == [
        ("default/p", False, "BindingSucceed", "Successfully binding node [n1] to default/p")
    ]
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.charges, claim.pinned) == (ClaimState.BOUND, (("GPU-0", Use(1, 3000, 30)),), False)


async def test_strange_epoch_lists_the_node_once(setup: Setup) -> None:
    setup.strange_epoch()
    setup.reserve(make_pod("p"))
    setup.reserve(make_pod("q"))
    assert await setup.bind("p") == ""
    setup.api.serve("default", "p")
    assert await setup.bind("q") == ""
    assert setup.api.count("list_pods") == 1


async def test_a_node_that_nobody_has_bound_to_needs_no_list(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    assert await setup.bind("p") == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "bind"]


async def test_a_node_made_anew_has_lost_its_epoch_and_is_listed(setup: Setup) -> None:
    """Another leader bound a pod just before the node object was made anew; our watch has not shown it yet."""
    setup.world.on_node_deleted("n1")
    setup.api.put_node(make_node("n1", uid="another"))
    setup.reserve(make_pod("p", container(memory_mib=16384)))
    setup.api.world = None
    setup.api.put_pod(annotated(make_pod("other"), "n1", "GPU-0,NVIDIA,16384,100:;GPU-1,NVIDIA,16384,100:;"))
    setup.api.world = setup.world
    assert "does not fit any more" in await setup.bind()
    assert setup.api.pod("p").spec.node_name == ""


async def test_a_list_that_failed_is_made_up_for_by_the_next_bind_though_the_epoch_is_ours_by_then(
    setup: Setup,
) -> None:
    """Another leader filled the node; our first look at it failed, and the token was given back."""
    setup.strange_epoch()
    setup.reserve(make_pod("p", container(memory_mib=16384)))
    setup.reserve(make_pod("q", container(memory_mib=16384)))
    setup.api.world = None
    setup.api.put_pod(annotated(make_pod("strange"), "n1", "GPU-0,NVIDIA,16384,0:GPU-1,NVIDIA,16384,0:;"))
    setup.api.faults["list_pods", "before"] = [TransportError("reset")]
    setup.api.world = setup.world
    assert await setup.bind("p") == "reset"
    assert parse_epoch(setup.api.nodes["n1"].annotations[keys.BIND_EPOCH]).leader == setup.binder._tokens.epoch
    assert "does not fit any more" in await setup.bind("q")
    assert setup.api.pod("q").spec.node_name == ""
    assert setup.api.count("list_pods") == 2


async def test_epoch_fence_sees_what_another_leader_bound(setup: Setup) -> None:
    setup.strange_epoch()
    setup.reserve(make_pod("p", container(memory_mib=16384)))
    other = annotated(make_pod("other"), "n1", "GPU-0,NVIDIA,16384,100:;GPU-1,NVIDIA,16384,100:;")
    setup.api.world = None
    setup.api.put_pod(other)
    setup.api.world = setup.world
    error = await setup.bind()
    assert "does not fit any more" in error
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""


async def test_epoch_fence_moves_to_a_free_card(setup: Setup) -> None:
    setup.strange_epoch()
    setup.reserve(make_pod("p", container(memory_mib=16384)))
    held = setup.world.ledger.get("uid-p")
    assert held is not None
    card = held.charges[0][0]
    setup.api.world = None
    setup.api.put_pod(annotated(make_pod("other"), "n1", f"{card},NVIDIA,16384,100:;"))
    setup.api.world = setup.world
    assert await setup.bind() == ""
    assert card not in setup.api.pod("p").annotations[NVIDIA.allocated_key]


async def test_restart_lost_the_reservation(setup: Setup) -> None:
    setup.api.put_pod(make_pod("p"))
    assert await setup.bind() == ""
    assert setup.api.pod("p").annotations[NVIDIA.allocated_key] == "GPU-0,NVIDIA,1000,0:;"
    setup.api.put_pod(make_pod("q", container(memory_mib=99999)))
    assert "n1 does not fit any more" in await setup.bind("q")


async def test_pod_without_devices_is_bound_by_one_write(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p", container(count=0)))
    assert setup.engine.filter(pod, setup.names).passthrough
    assert await setup.bind() == ""
    assert setup.api.calls == [("bind", "p")]
    assert (setup.api.pod("p").spec.node_name, setup.api.pod("p").annotations) == ("n1", {})


async def test_init_only_pod_takes_the_token(setup: Setup) -> None:
    setup.reserve(make_pod("p", container(count=0), init=(container(memory_mib=500),)))
    assert await setup.bind() == ""
    assert parse_token(setup.api.lock("n1")).pod == "p"
    assert setup.api.pod("p").annotations[NVIDIA.to_allocate_key] == "GPU-0,NVIDIA,500,0:;;"


async def test_node_name_longer_than_a_label_value(setup: Setup) -> None:
    name = "node-" + "x" * 80
    setup.api.put_node(make_node(name))
    setup.reserve(make_pod("p"), name)
    assert await setup.bind(node=name) == ""
    assert setup.api.pod("p").spec.node_name == name
    assert setup.api.pod("p").labels == {}


async def test_B64_B65_pods_of_one_node_go_in_turn(setup: Setup) -> None:
    setup.own_epoch()
    pods = [f"p{number:02}" for number in range(10)]
    for name in pods:
        setup.reserve(make_pod(name, container(memory_mib=100)))
    served: list[str] = []

    async def plugin() -> None:
        while len(served) < len(pods):
            owner = setup.api.lock("n1").rpartition(",")[2]
            if owner and setup.api.pod(owner).spec.node_name:
                served.append(owner)
                setup.api.serve("default", owner)
            await asyncio.sleep(0)

    server = asyncio.create_task(plugin())
    assert await asyncio.gather(*(setup.bind(name) for name in pods)) == [""] * len(pods)
    await server
    assert served == pods
    assert setup.api.count("get_pod") == 0
    assert setup.api.count("bind") == len(pods)


async def test_B61_B62_token_of_another_pod_is_waited_for_and_left_alone() -> None:
    setup = Setup(wait_s=0.02)
    setup.api.put_pod(annotated(make_pod("abc-123"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.reserve(make_pod("abc"))
    text = setup.lock("abc-123")
    error = await setup.bind("abc")
    assert error.startswith("timed out waiting for node n1 to be unlocked: node lock contention")
    assert setup.api.lock("n1") == text
    assert setup.api.count("patch_node") == 0
    claim = setup.world.ledger.get("uid-abc")
    assert claim is not None
    assert setup.events.recorded[-1][1:3] == (True, "BindingFailed")


async def test_same_name_in_another_namespace_is_another_owner() -> None:
    setup = Setup(wait_s=0.02)
    setup.api.put_pod(
        annotated(make_pod("p", namespace="other", uid="u2"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating")
    )
    setup.reserve(make_pod("p"))
    setup.api.annotate_node("n1", lock="2027-01-15T08:00:00Z,other,p")
    assert "contention" in await setup.bind("p")


@pytest.mark.parametrize(
    ("owner", "frees"),
    [
        (None, True),
        (with_phase(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"), "Failed"), True),
        (annotated(make_pod("o"), "n2", "GPU-1,NVIDIA,1,0:;", phase="allocating"), True),
        (annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="success"), True),
        (annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="failed"), True),
        (deleted(make_pod("o")), True),
        (annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"), False),
        (make_pod("o"), False),
    ],
    ids=["gone", "failed", "elsewhere", "served", "phase-failed", "deleted-unbound", "on-its-way", "unbound"],
)
async def test_B76_token_is_freed_by_its_owners_state(owner: Pod | None, frees: bool) -> None:
    setup = Setup(wait_s=0.02)
    if owner is not None:
        setup.api.put_pod(owner)
    setup.reserve(make_pod("p"))
    setup.lock("o")
    assert (await setup.bind() == "") == frees


async def test_waiter_wakes_when_the_owner_fails(setup: Setup) -> None:
    setup.own_epoch()
    owner = setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    waiting = asyncio.create_task(setup.bind())
    await until(lambda: setup.world.signals._waiters, "waiting")
    setup.api.put_pod(with_phase(owner, "Failed"))
    assert await asyncio.wait_for(waiting, 1.0) == ""


async def test_expired_owner_is_fenced_before_its_token_is_taken(setup: Setup) -> None:
    owner = setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    setup.lock("o", age_s=301)
    assert await setup.bind() == ""
    with pytest.raises(ConflictError):
        await setup.api.bind(
            "default",
            "o",
            uid="uid-o",
            resource_version=owner.metadata.resource_version,
            node="n1",
            annotations={},
        )


async def test_fence_that_is_forbidden_means_wait() -> None:
    setup = Setup(wait_s=0.02)
    setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    text = setup.lock("o", age_s=301)
    setup.api.faults["patch_pod", "before"] = [ApiError(403, "Forbidden", "no") for _ in range(20)]
    assert "contention" in await setup.bind()
    assert setup.api.lock("n1") == text


async def test_left_over_token_is_free_once_its_owner_was_written() -> None:
    setup = Setup(wait_s=0.7)
    owner = setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    assert "contention" in await setup.bind()
    setup.api.put_pod(make_pod("o"))
    assert await setup.bind() == ""
    version = owner.metadata.resource_version
    with pytest.raises(ConflictError):
        await setup.api.bind("default", "o", uid="uid-o", resource_version=version, node="n1", annotations={})


async def test_left_over_token_of_upstreams_scheduler_at_work_is_kept() -> None:
    setup = Setup(wait_s=0.7)
    setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    assert "contention" in await setup.bind()
    setup.api.put_pod(make_pod("o", annotations={keys.VGPU_NODE: "n1"}))
    assert "contention" in await setup.bind()


async def test_new_term_forgets_what_was_seen_of_owners() -> None:
    setup = Setup(wait_s=0.7)
    setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    assert "contention" in await setup.bind()
    setup.api.put_pod(make_pod("o"))
    setup.binder.new_term()
    assert "contention" in await setup.bind()


async def test_pods_that_hold_each_others_tokens_are_bound_after_one_failed_bind() -> None:
    setup = Setup(wait_s=5.0)
    nodes = {"p": "n1", "q": "n2"}
    for name, node in nodes.items():
        setup.reserve(make_pod(name), node)
    setup.lock("q", node="n1")
    setup.lock("p", node="n2")

    async def schedule(name: str) -> int:
        """As kube-scheduler: a failed bind writes the pod's condition, then the pod is scheduled again."""
        failures = 0
        while text := await setup.bind(name, nodes[name]):
            assert "left behind" in text
            failures += 1
            setup.reserve(make_pod(name), nodes[name])
        return failures

    assert sum(await asyncio.gather(*(schedule(name) for name in nodes))) <= len(nodes)
    assert [setup.api.pods["default", name].spec.node_name for name in nodes] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("lock", "frees"),
    [
        ("2024-05-01T00:00:00Z", True),
        ("2024-05-01T00:00:00Z,default,gone", True),
        ("x,y", True),
        ("nonsense", True),
        ("fresh", False),
    ],
)
async def test_B71_older_and_malformed_tokens(lock: str, frees: bool) -> None:
    setup = Setup(wait_s=0.02)
    setup.reserve(make_pod("p"))
    if lock == "fresh":
        setup.lock("", age_s=10)
    else:
        setup.api.annotate_node("n1", lock=lock)
    assert (await setup.bind() == "") == frees


async def test_own_token_is_taken_again(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    setup.lock("p", age_s=20)
    assert await setup.bind() == ""


# Cancellation


async def waiting_call(setup: Setup) -> asyncio.Task[str]:
    setup.own_epoch()
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    task = asyncio.create_task(setup.bind())
    await until(lambda: setup.world.signals._waiters, "waiting")
    return task


async def test_client_gone_before_the_first_write_leaves_no_trace(setup: Setup) -> None:
    task = await waiting_call(setup)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await setup.binder.drain()
    setup.api.serve("default", "o")
    await asyncio.sleep(0)
    assert setup.api.count("patch_node") == 0
    assert setup.binder._queues.waiting("n1") == 0
    assert setup.world.in_flight.get("uid-p") is None


async def test_client_gone_at_once_leaves_nothing_half_done(setup: Setup) -> None:
    """The work may have begun to write by then: it is done as a whole or not at all."""
    setup.reserve(make_pod("p"))
    task = asyncio.create_task(setup.bind())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(setup.binder.drain(), 1.0)
    assert setup.world.in_flight.get("uid-p") is None
    assert bool(setup.api.lock("n1")) == (setup.api.pod("p").spec.node_name == "n1")


async def test_new_term_lists_the_node_again(setup: Setup) -> None:
    setup.strange_epoch()
    for name in ("p", "q"):
        setup.reserve(make_pod(name))
        setup.binder.new_term()
        setup.clock.advance(1)
        assert await setup.bind(name) == ""
        setup.api.serve("default", name)
    assert setup.api.count("list_pods") == 2


@pytest.mark.parametrize("why", ["filter", "leadership", "deleted", "bind again"])
async def test_waiting_call_is_called_off(setup: Setup, why: str) -> None:
    task = await waiting_call(setup)
    match why:
        case "filter":
            assert setup.engine.filter(setup.api.pod("p"), NodeNames.of(["n2"])).node == "n2"
        case "leadership":
            setup.binder.leadership_lost()
        case "deleted":
            setup.api.delete_pod("default", "p")
        case "bind again":
            again = asyncio.create_task(setup.bind())
    assert "called off" in await task
    assert setup.api.count("patch_node") == 0
    if why == "bind again":
        setup.api.serve("default", "o")
        assert await again == ""


@pytest.mark.parametrize("gate", ["patch_node", "bind"])
async def test_call_that_has_begun_to_write_runs_to_its_end(setup: Setup, gate: str) -> None:
    setup.own_epoch()
    pod = setup.reserve(make_pod("p"))
    setup.api.gates[gate] = asyncio.Event()
    task = asyncio.create_task(setup.bind())
    await until(lambda: (gate, "n1" if gate == "patch_node" else "p") in setup.api.calls, gate)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    setup.binder.leadership_lost()
    assert setup.engine.filter(pod, setup.names).node == "n1"
    joined = asyncio.create_task(setup.bind())
    assert "being bound to node n1" in await setup.bind(node="n2")
    setup.api.gates[gate].set()
    assert await joined == ""
    await setup.binder.drain()
    assert setup.api.pod("p").spec.node_name == "n1"
    assert setup.api.count("bind") == 1


# Conflicts and faults


async def test_B70_node_changed_between_read_and_patch(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.annotate_node("n1", cordon="GPU-9")
    setup.api.world = setup.world
    assert await setup.bind() == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "get_node", "patch_node", "bind"]


async def test_B70_newer_token_is_not_overwritten() -> None:
    setup = Setup(wait_s=0.02)
    setup.reserve(make_pod("p"))
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.api.world = None
    text = setup.lock("o")
    setup.api.world = setup.world
    assert "contention" in await setup.bind()
    assert setup.api.lock("n1") == text


async def test_stale_resource_version_of_the_pod_is_read_again(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.put_pod(make_pod("p"))
    setup.api.world = setup.world
    assert await setup.bind() == ""
    # The new version is written beside the token before a Binding asks for it (docs/adr/0004).
    assert [verb for verb, _ in setup.api.calls] == [
        "patch_node",
        "bind",
        "get_pod",
        "get_node",
        "patch_node",
        "bind",
    ]


async def test_conflict_with_a_token_taken_over_ends_the_call(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [ConflictError(409, "Conflict", "changed")]
    setup.api.hooks["bind", "before"] = lambda: setup.api.annotate_node("n1", lock="2027-01-15T08:00:09Z,default,thief")
    assert "taken over" in await setup.bind()
    assert setup.api.lock("n1").endswith("thief")
    assert setup.api.pod("p").spec.node_name == ""


async def test_token_of_another_leader_for_the_same_pod_in_the_same_second_is_not_ours(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [ConflictError(409, "Conflict", "changed")]
    setup.api.hooks["bind", "before"] = lambda: setup.api._merge_node("n1", {keys.BIND_EPOCH: "sched-1/7"})
    assert "taken over" in await setup.bind()
    assert setup.api.lock("n1").endswith(",p")
    assert setup.api.count("bind") == 1


async def test_bound_elsewhere_meanwhile(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    elsewhere = annotated(setup.api.pod("p"), "n2", "GPU-1,NVIDIA,7,0:;")
    setup.api.hooks["bind", "before"] = lambda: setup.api.put_pod(elsewhere)
    assert "bound to node n2" in await setup.bind()
    assert setup.api.lock("n1") == ""
    setup.assert_free("n1")
    assert dict(setup.world.ledger.uses("n2")) == {"GPU-1": Use(1, 7, 0)}


async def test_B74_pod_deleted_between_filter_and_bind(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.delete_pod("default", "p")
    setup.api.world = setup.world
    assert "not found" in await setup.bind()
    setup.assert_free()
    assert setup.world.ledger.namespaces.of("default") == {}
    assert setup.api.lock("n1") == ""


async def test_pod_of_the_same_name_with_another_uid(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.put_pod(make_pod("p", uid="other"))
    setup.api.world = setup.world
    assert "replaced" in await setup.bind()
    setup.assert_free()
    assert setup.api.lock("n1") == ""
    assert setup.api.pod("p").annotations == {}


async def test_B67_node_gone(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    setup.world.on_node_deleted("n1")
    assert await setup.bind() == "failed to get node n1"
    setup.assert_free()


async def test_bind_of_a_bound_pod(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    assert await setup.bind() == ""
    setup.api.calls.clear()
    assert await setup.bind() == ""
    assert "bound to node n1 already" in await setup.bind(node="n2")
    assert setup.api.calls == []


GONE = TransportError("connection reset")
SLOW = ApiError(504, "Timeout", "request did not complete")
BUSY = ApiError(429, "TooManyRequests", "later")


@pytest.mark.parametrize("verb", ["patch_node", "bind"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("fault", [GONE, SLOW, BUSY], ids=["reset", "504", "429"])
async def test_B67_B68_one_fault_at_each_write(verb: str, moment: str, fault: HamiError) -> None:
    """Every combination ends bound, exactly once."""
    setup = Setup(wait_s=0.2)
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults[verb, moment] = [fault]
    assert await setup.bind() == ""
    assert setup.api.pod("p").spec.node_name == "n1"
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.pinned) == (ClaimState.BOUND, False)
    assert dict(setup.world.ledger.uses("n1")) == {"GPU-0": Use(1, 1000, 0)}


async def test_B68_binding_that_never_gets_an_answer_rolls_back(setup: Setup) -> None:
    setup.own_epoch()
    pod = setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [TransportError("timeout") for _ in range(9)]
    assert "timeout" in await setup.bind()
    assert setup.api.lock("n1") == ""
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.pinned) == (ClaimState.RESERVED, False)
    setup.api.faults.clear()
    with pytest.raises(ConflictError):
        await setup.api.bind(
            "default", "p", uid="uid-p", resource_version=pod.metadata.resource_version, node="n1", annotations={}
        )
    assert await setup.bind() == ""


@pytest.mark.parametrize("fault", [ApiError(403, "Forbidden", "no"), ApiError(422, "Invalid", "bad")])
async def test_B67_refused_binding_gives_the_token_back_and_keeps_the_reservation(
    setup: Setup, fault: ApiError
) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [fault]
    assert await setup.bind() == str(fault)
    assert setup.api.lock("n1") == ""
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert claim.state is ClaimState.RESERVED
    assert await setup.bind() == ""


async def test_list_that_fails_binds_nothing(setup: Setup) -> None:
    setup.strange_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["list_pods", "before"] = [TransportError("down")]
    assert await setup.bind() == "down"
    assert setup.api.lock("n1") == ""
    assert setup.api.count("bind") == 0


async def test_node_deleted_under_the_token_patch(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    setup.api.faults["patch_node", "before"] = [NotFoundError(404, "NotFound", "node gone")]
    assert await setup.bind() == "failed to get node n1"
    setup.assert_free()


async def test_card_lost_after_the_filter_is_replaced_by_another(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    nodes = make_node("n1")
    broken = nodes.annotations[NVIDIA.register_key].replace('"id":"GPU-0"', '"id":"GPU-7"')
    setup.api._merge_node("n1", {NVIDIA.register_key: broken})
    assert await setup.bind() == ""
    assert "GPU-0" not in setup.api.pod("p").annotations[NVIDIA.allocated_key]


async def test_two_schedulers_never_share_a_card() -> None:
    """The first leader stalls between token and Binding; the second fills the node; the first goes on."""
    first = Setup()
    second = Setup()
    second.api = first.api
    second.binder = Binder(
        second.world,
        first.api,
        second.events,
        second.clock,
        BindSettings("sched-1", wait_s=0.5, token_expiry_s=0.0, retry_pause_s=0.001),
    )
    whole = container(memory_mib=16384)
    first.reserve(make_pod("a", whole))
    for name in ("b", "c"):
        first.api.put_pod(make_pod(name, whole))
    gate = first.api.gates["bind"] = asyncio.Event()
    stalled = asyncio.create_task(first.bind("a"))
    await until(lambda: ("bind", "a") in first.api.calls, "stalled")
    first.api.gates.clear()
    first.api.world = second.world
    for node in first.api.nodes.values():
        second.world.on_node(node)
    for pod in first.api.pods.values():
        second.world.on_pod(pod)
    for name in ("b", "c"):
        assert second.engine.filter(first.api.pod(name), NodeNames.of(["n1"])).node == "n1"
        assert await second.binder.bind("default", name, f"uid-{name}", "n1") == ""
        first.api.serve("default", name)
    gate.set()
    assert await stalled != ""
    texts = [pod.annotations.get(NVIDIA.allocated_key, "") for pod in first.api.pods.values()]
    cards = [text.split(",")[0] for text in texts if text]
    assert sorted(cards) == ["GPU-0", "GPU-1"]


async def test_quota_that_shrank_refuses_the_bind(setup: Setup) -> None:
    """Bind's re-fit asks the quota as well; the pod's own reservation does not count against it."""
    setup.reserve(make_pod("p", container(memory_mib=1000)))
    setup.world.quotas.apply(memory_quota("1000"))
    assert await setup.bind() == ""
    setup.reserve(make_pod("q", container(memory_mib=500), namespace="team"))
    setup.world.quotas.apply(memory_quota("100", "team"))
    text = await setup.binder.bind("team", "q", "uid-q", "n1")
    assert text.startswith("node n1 does not fit any more: 2/2 ResourceQuotaNotFit; exceeding resource quota q")
    assert text.endswith("used 0 MiB, requested 500 MiB, limit 100 MiB")
    assert setup.api.pod("q", "team").spec.node_name == ""


def memory_quota(limit: str, namespace: str = "default") -> ResourceQuota:
    hard: dict[str, Quantity] = {"limits.nvidia.com/gpumem": limit}
    return ResourceQuota(metadata=ObjectMeta(name="q", namespace=namespace), spec=ResourceQuotaSpec(hard=hard))


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
async def test_B74_pod_that_ended_between_filter_and_bind(setup: Setup, ended: str) -> None:
    pod = setup.reserve(make_pod("p"))
    setup.api.put_pod(with_phase(pod, ended))
    assert "has ended" in await setup.bind()
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""
    setup.assert_free()


@pytest.mark.parametrize(
    "lock",
    [",,,", "\u00e9" * 300, "9999-12-31T23:59:59Z,default,ghost", "0001-01-01T00:00:00Z,default,q",
     "2024-05-01T00:00:00Z,other,p", "2024-05-01T00:00:00Z,default,pp", "2024-05-01T00:00:00+14:00,default,p"],
)  # fmt: skip
async def test_B62_B71_odd_tokens_of_nobody_are_taken_over(lock: str) -> None:
    setup = Setup(wait_s=1.0)
    setup.reserve(make_pod("p"))
    setup.api.annotate_node("n1", lock=lock)
    assert await setup.bind() == ""
    assert parse_token(setup.api.lock("n1")).key == "default/p"
