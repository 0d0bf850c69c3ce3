"""A page from kept parts is what a page made anew is, after any history; and only what changed is rendered."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from hami.core import keys
from hami.core.codec import MigAllocation, encode_mig_allocations
from hami.core.model import Device, MigPlacement
from hami.core.objects import ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from hami.web.card_metrics import Page, app, snapshot
from hami.web.deflated import Piece
from hami.web.streamed import Turns, gzipped, takes_gzip
from tests.placement.fakes import FakeClock, annotated, card, container, make_node, make_pod, make_world, with_phase
from tests.web.asgi_client import call
from tests.web.pages import gzipped_page, plain_page

NODES = ("n0", "n1", 'odd "name"\\', "n10")
PODS = tuple(f"p{number}" for number in range(6))
STEPS = (
    "node",
    "node gone",
    "cordon",
    "heartbeat",
    "pod",
    "mig pod",
    "pod done",
    "pod gone",
    "filter",
    "later",
    "quota",
)
Step = tuple[str, int, int]


class History:
    """A world to which things happen, by numbers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.world = make_world(self.clock)
        self.engine = Engine(self.world)
        self.version = 0

    def take(self, step: Step) -> None:
        kind, some, other = step
        self.version += 1
        getattr(self, "_" + kind.replace(" ", "_"))(NODES[some % len(NODES)], PODS[other % len(PODS)], some + other)

    def _node(self, node: str, _: str, number: int) -> None:
        stamp = f"Reported {number}" if number % 2 else None
        self.world.on_node(make_node(node, _cards(number), version=self.version, handshake=stamp))

    def _node_gone(self, node: str, _pod: str, _number: int) -> None:
        self.world.on_node_deleted(node)

    def _cordon(self, node: str, _: str, number: int) -> None:
        self.world.on_node(make_node(node, _cards(number), version=self.version, cordon="GPU-0"))

    def _heartbeat(self, node: str, _: str, number: int) -> None:
        stamp = f"Reported {self.version}"
        self.world.on_node(make_node(node, _cards(number), version=self.version, handshake=stamp))

    def _pod(self, node: str, pod: str, number: int) -> None:
        text = f"GPU-{number % 3},NVIDIA,{100 * number},{number}:;" if number % 5 else "cannot be read"
        self.world.on_pod(annotated(self._named(pod), node, text))

    def _mig_pod(self, node: str, pod: str, number: int) -> None:
        made = MigAllocation(0, 0, "GPU-0", "2g.10gb", MigPlacement(2, 2), f"MIG-{number}", number, 0)
        chosen = MigAllocation(0, 1, "GPU-0", "2g.10gb", MigPlacement(4, 2), "MIG-other" if number % 2 else None)
        text = encode_mig_allocations([made, chosen]) if number % 3 else "not JSON"
        held = "GPU-0,NVIDIA,9856,0:GPU-0,NVIDIA,4864,0:;"
        made_for = make_pod(
            pod, container(2), namespace="team", version=self.version, annotations={keys.MIG_ALLOCATIONS: text}
        )
        self.world.on_pod(annotated(made_for, node, held))

    def _pod_done(self, _: str, pod: str, _number: int) -> None:
        self.world.on_pod(with_phase(self._named(pod), "Succeeded"))

    def _pod_gone(self, _: str, pod: str, _number: int) -> None:
        self.world.on_pod_deleted("team", pod, f"uid-{pod}")

    def _filter(self, _: str, pod: str, number: int) -> None:
        asked = make_pod(pod, container(1, memory_mib=number), namespace="team", uid=f"uid-{pod}-{self.version}")
        self.engine.filter(asked, NodeNames.of(NODES))

    def _later(self, _node: str, _pod: str, number: int) -> None:
        self.clock.advance(40.0 * number)

    def _quota(self, _node: str, _pod: str, number: int) -> None:
        hard = {"limits.nvidia.com/gpumem": str(number)}
        self.world.quotas.apply(
            ResourceQuota(metadata=ObjectMeta(name="q", namespace="team"), spec=ResourceQuotaSpec(hard=dict(hard)))
        )

    def _named(self, pod: str) -> Pod:
        return make_pod(pod, container(2), namespace="team", version=self.version)


def _cards(number: int) -> list[Device]:
    mode = {"mode": "mig", "type": "NVIDIA A100-SXM4-40GB"} if number % 4 == 3 else {}
    return [card(0, **mode), *(card(place, memory_mib=0 if number == 5 else 16384) for place in range(1, number % 3))]


@pytest.mark.parametrize("legacy", [False, True])
@settings(max_examples=400 if os.environ.get("HAMI_SOAK") else 40)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 7)), min_size=5, max_size=25))
def test_after_each_step_the_page_is_what_a_fresh_one_is(legacy: bool, steps: list[Step]) -> None:
    async def live() -> None:
        history = History()
        page = Page(history.world, legacy=legacy)
        for number, step in enumerate(steps):
            history.take(step)
            read = gzipped_page if number % 2 else plain_page
            found = await read(page)
            assert found.startswith(generate_latest(snapshot(history.world, legacy=legacy)))

    asyncio.run(live())


def _cluster(clock: FakeClock | None = None) -> World:
    world = make_world(clock)
    for number in range(20):
        world.on_node(make_node(f"n{number}"))
        world.on_pod(annotated(make_pod(f"p{number}"), f"n{number}", f"GPU-0,NVIDIA,{number},1:;"))
    return world


DELTAS: list[tuple[Callable[[World], object], int]] = [
    (lambda world: None, 0),
    (lambda world: world.on_node(make_node("n3", version=2, handshake="Reported 2026-11-30 02:00:00")), 0),
    (lambda world: world.on_pod(annotated(make_pod("p3", version=2), "n3", "GPU-0,NVIDIA,3,1:;", phase="success")), 0),
    (lambda world: world.on_pod(annotated(make_pod("new"), "n3", "GPU-1,NVIDIA,7,0:;")), 1),
    (lambda world: world.on_pod_deleted("default", "p3", "uid-p3"), 1),
    (lambda world: world.on_node(make_node("n3", 3, version=2)), 1),
    (lambda world: world.on_node(make_node("n99")), 1),
    (lambda world: world.on_node_deleted("n3"), 1),
    (lambda world: world.quotas.remove("default", "none"), 0),
]


@pytest.mark.parametrize(("delta", "rendered"), DELTAS)
async def test_only_what_changed_is_rendered(delta: Callable[[World], object], rendered: int) -> None:
    world = _cluster()
    page = Page(world)
    await plain_page(page)
    before = page.cache.rendered
    delta(world)
    assert (await gzipped_page(page)).startswith(generate_latest(snapshot(world)))
    assert page.cache.rendered - before == rendered


async def test_pages_at_the_same_time_render_each_node_once() -> None:
    world = _cluster()
    page = Page(world)
    pages = await asyncio.gather(*(read(page) for read in (plain_page, gzipped_page, plain_page)))
    assert {text.count(b"\nhami_vgpu_core_allocated_ratio{") for text in pages} == {20}
    assert page.cache.rendered == 20


async def test_what_changes_under_a_page_leaves_it_whole() -> None:
    """The page that is on its way shows each node as it was, in all families."""
    world = _cluster()
    page = Page(world)
    before = _of_nodes(await plain_page(page))
    pieces = page.pieces(Turns())
    first = await anext(pieces)
    for number in range(20):
        world.on_pod_deleted("default", f"p{number}", f"uid-p{number}")
    after = _of_nodes(await plain_page(page))

    async def all_pieces() -> AsyncIterator[Piece]:
        yield first
        async for piece in pieces:
            yield piece

    sent = b"".join([chunk async for chunk in gzipped(all_pieces(), Turns())])
    assert _of_nodes(gzip.decompress(sent)) == before
    assert any(line.startswith(b"hami_vgpu") for line in before)
    assert not any(line.startswith(b"hami_vgpu") for line in after)


def _of_nodes(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if b'node="' in line]


async def test_a_replica_that_leads_no_more_keeps_nothing() -> None:
    leads = [True]
    page = Page(_cluster(), leads=lambda: leads[0])
    assert b"\nhami_gpu_shared_count{" in await plain_page(page)
    leads[0] = False
    assert b"hami_gpu_shared_count" not in await plain_page(page)
    leads[0] = True
    assert b"\nhami_gpu_shared_count{" in await gzipped_page(page)
    assert page.cache.rendered == 40


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("x-gzip", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("br, zstd", False),
    ],
)
async def test_gzip_is_sent_to_those_who_ask_for_it(accepted: str, taken: bool) -> None:
    reply = await call(app(_cluster(), {}), "/metrics", method="GET", accept_encoding=accepted)
    assert takes_gzip(accepted) is taken
    assert reply.headers.get("content-encoding", "") == ("gzip" if taken else "")
    assert reply.headers["vary"] == "accept-encoding"
    text = gzip.decompress(reply.body) if taken else reply.body
    assert text.count(b"\nhami_gpu_shared_count{") == 40
    assert b"\nhami_scheduler_leads " in text
