"""The token of a node in a bind: whose turn it is, who is waited for, whose token is taken."""

from __future__ import annotations

import asyncio

import pytest

from hami.core import keys
from hami.core.errors import ApiError, ConflictError
from hami.core.objects import Pod
from hami.core.token import BindEpoch, encode_epoch, parse_token
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    annotated,
    container,
    deleted,
    make_pod,
    with_phase,
)
from tests.tools.waiting import until


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
    assert await asyncio.wait_for(waiting, 60.0) == ""


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
    owner = setup.api.put_pod(make_pod("o"))
    setup.reserve(make_pod("p"))
    text = setup.lock("o", age_s=301)
    epoch = BindEpoch("sched-1/7", text.partition(",")[0], "uid-o", owner.metadata.resource_version)
    setup.api._merge_node("n1", {keys.BIND_EPOCH: encode_epoch(epoch)})
    setup.api.faults["patch_pod", "before"] = [ApiError(403, "Forbidden", "no") for _ in range(20)]
    assert "contention" in await setup.bind()
    assert setup.api.lock("n1") == text


@pytest.mark.parametrize("notes", [{}, {keys.VGPU_NODE: "n1"}, {keys.VGPU_NODE: "n2"}], ids=str)
@pytest.mark.parametrize(("age_s", "taken"), [(299, False), (301, True), (-299, False), (-301, True)])
async def test_a_token_without_a_version_is_taken_by_its_age_where_no_fence_is_allowed(
    notes: dict[str, str], age_s: float, taken: bool
) -> None:
    """Upstream's scheduler stopped in the middle, and nothing ever writes its pod again."""
    setup = Setup(wait_s=0.02)
    setup.api.put_pod(make_pod("o", annotations=notes))
    setup.reserve(make_pod("p"))
    text = setup.lock("o", age_s=age_s)
    setup.api.faults["patch_pod", "before"] = [ApiError(403, "Forbidden", "no") for _ in range(20)]
    error = await setup.bind()
    assert (error == "", setup.api.lock("n1") != text) == (taken, taken), error


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
