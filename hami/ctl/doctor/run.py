"""Looks at a cluster twice where one look may mislead, and reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from hami.core import keys
from hami.core.device_type import Registry
from hami.ctl.doctor.cards import card_count, check_cards, world_of
from hami.ctl.doctor.findings import Finding, is_trouble, ranked
from hami.ctl.doctor.hand_off import ORPHANED_TOKEN, check_pods, check_tokens, token_node
from hami.ctl.doctor.show import Report
from hami.ctl.doctor.snapshot import Snapshot, lock_texts, take
from hami.ctl.doctor.webhook import Endpoint, check_webhook
from hami.kube.client import ApiClient

_SECOND_LOOK_S: Final = 2.0
_CLOCKS_DIFFER_S: Final = 30.0


async def examine(
    client: ApiClient,
    registry: Registry,
    *,
    dial: Endpoint | None = None,
    unix_s: Callable[[], float] = time.time,
    second_look_s: float = _SECOND_LOOK_S,
) -> Report:
    """Reads the cluster and checks it. Raises the ApiError family and TransportError."""
    snapshot = await take(client, unix_s())
    _by_the_servers_clock(client, snapshot, unix_s())
    world = world_of(snapshot, registry)
    findings = [*check_cards(snapshot, world), *check_pods(snapshot, registry)]
    findings += await _lasting(client, snapshot, list(check_tokens(snapshot)), second_look_s)
    dates: list[str] = []
    findings += await check_webhook(snapshot, dial, dates)
    return Report(
        ok=not any(is_trouble(each) for each in findings),
        nodes=len(snapshot.nodes),
        pods=len(snapshot.pods),
        cards=card_count(world),
        findings=tuple(ranked(findings)),
        notes=tuple(snapshot.notes),
        certificates=tuple(dates),
    )


def _by_the_servers_clock(client: ApiClient, snapshot: Snapshot, unix_s: float) -> None:
    """Ages are counted by the API server's clock where this machine's is far from it: stamps in a cluster are about as
    right as its servers' clocks, and a laptop's may be anything."""
    server_unix_s = client.server_unix_s
    if server_unix_s is None or abs(unix_s - server_unix_s) <= _CLOCKS_DIFFER_S:
        return
    ahead_s = unix_s - server_unix_s
    side = "ahead of" if ahead_s > 0 else "behind"
    snapshot.unix_s -= ahead_s
    snapshot.notes.append(f"this machine's clock, which is {abs(ahead_s):.0f} s {side} the API server's")


async def _lasting(client: ApiClient, snapshot: Snapshot, found: list[Finding], pause_s: float) -> list[Finding]:
    """Nodes and pods were not read at one moment: a token counts only if it is still there a little later."""
    if not found:
        return []
    await asyncio.sleep(pause_s)
    before = {node.name: node.annotations.get(keys.NODE_LOCK, "") for node in snapshot.nodes}
    after = await lock_texts(client, [token_node(each) for each in found], keys.NODE_LOCK)
    same = {name for name, text in after.items() if text and text == before.get(name)}
    return [each for each in found if each.check != ORPHANED_TOKEN or token_node(each) in same]
