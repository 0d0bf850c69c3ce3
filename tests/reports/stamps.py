"""Handshakes as plugins write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from tests.placement.fakes import START_UNIX_S

HANDSHAKE = "hami.io/node-handshake"


def stamp(age_s: float, zone_h: float = 0.0, layout: str = "%Y-%m-%d %H:%M:%S") -> str:
    zone = timezone(timedelta(hours=zone_h))
    return (datetime.fromtimestamp(START_UNIX_S, UTC) - timedelta(seconds=age_s)).astimezone(zone).strftime(layout)
