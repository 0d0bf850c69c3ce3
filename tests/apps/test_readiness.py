"""Readiness of a scheduler that hears nothing any more (report B55)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.apps.rig import rigged


async def test_b55_a_scheduler_that_hears_nothing_is_not_ready_until_it_does(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        replica = await rig.replica()
        await rig.until(lambda: replica.missing() == "", "readiness")
        pods = replica._watches[1]
        pods.last_heard_monotonic_s = time.monotonic() - 301
        assert replica.missing().startswith("nothing heard from the API server for 30")
        pods.heard()
        assert replica.missing() == ""
