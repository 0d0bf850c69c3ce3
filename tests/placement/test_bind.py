"""The bind protocol against an API with compare-and-set: what is written, epochs, another fit on the node."""

from __future__ import annotations

from hami.core import keys
from hami.core.errors import TransportError
from hami.core.model import Use
from hami.core.objects import ObjectMeta, Quantity, ResourceQuota, ResourceQuotaSpec
from hami.core.token import parse_epoch, parse_token
from hami.placement.claims import ClaimState
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    NVIDIA,
    START_UNIX_S,
    annotated,
    container,
    make_node,
    make_pod,
)


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


async def test_the_list_takes_off_the_books_what_was_deleted_behind_our_watch(setup: Setup) -> None:
    setup.strange_epoch()
    setup.api.put_pod(annotated(make_pod("old"), "n1", "GPU-1,NVIDIA,16384,100:;"))
    setup.reserve(make_pod("waits", container(memory_mib=100)))
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.delete_pod("default", "old")
    setup.api.world = setup.world
    assert await setup.bind() == ""
    assert set(setup.world.ledger.uids_on("n1")) == {"uid-p", "uid-waits"}, "reservations are in no list and stay"


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
