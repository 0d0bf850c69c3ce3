"""The metrics listener over many cards: the loop goes on meanwhile (design 4, promise 7)."""

from __future__ import annotations

import asyncio
import time

from hami.web import asgi, card_metrics
from tests.placement.fakes import make_node, make_world
from tests.web.asgi_client import call

NODES = 300
CARDS = 8
TRIES = 5
"""A collection of garbage may fall into one."""


async def test_the_loop_goes_on_while_cards_are_rendered() -> None:
    world = make_world()
    for number in range(NODES):
        world.on_node(make_node(f"n{number}", CARDS))
    await world.settle()
    app = card_metrics.app(world, {})
    stood_still = [await _longest_stop(app) for _ in range(TRIES)]
    assert min(stood_still) < 0.5, f"the loop stood still for these parts of a scrape: {stood_still}"


async def _longest_stop(app: asgi.App) -> float:
    """The most CPU between two turns of the loop, as a part of the whole scrape: what others take does not count."""
    began_s = turned_s = time.thread_time()
    longest_s = 0.0
    scrape = asyncio.create_task(call(app, "/metrics", method="GET"))
    while not scrape.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s, turned_s = max(longest_s, now_s - turned_s), now_s
    page = scrape.result().body.decode()
    assert page.count("\nhami_gpu_shared_count{") == NODES * CARDS
    return longest_s / (turned_s - began_s)
