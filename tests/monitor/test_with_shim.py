"""The monitor on a region that our shim keeps, while its process lives and after it was killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hami.core.objects import ObjectMeta, Pod
from hami.monitor.collect import Collector
from hami.monitor.containers import give_feedback, look
from hami.shim.layout import read_region
from tests.shim.conftest import make_container
from tests.shim.container import kill
from tests.shim.harness import MIB, build_fakes, build_shim, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


async def no_pods() -> list[Pod]:
    return []


async def test_a_living_process_keeps_its_folder(tmp_path: Path) -> None:
    """A pod deleted by force is gone from the API before its processes are."""
    box = make_container(tmp_path, build_fakes(), build_shim(), limit_mib=100)
    vgpu = tmp_path / "vgpu"
    (vgpu / "containers").mkdir(parents=True)
    home = vgpu / "containers/u_main"
    holder = box.start("test_alloc_hold", 64)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("held")
        box.region.parent.rename(home)
        region = home / box.region.name
        pods = {"u": Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u"))}
        found = look(vgpu, pods)
        assert [use.state.used_bytes(0) for use in found.uses] == [64 * MIB]
        assert give_feedback(found.uses, time.time()) == ()
        state = read_region(region)
        assert (state.utilization_switch, state.used_bytes(0)) == (0, 64 * MIB)
        os.utime(home, (1, 1))
        collector = Collector(vgpu, 0, no_pods)
        assert await collector.collect({"u_main"}) == frozenset()
        assert home.exists()
    finally:
        kill([holder])
    assert [use.state.processes for use in look(vgpu, pods).uses] == [()]
    assert await collector.collect({"u_main"}) == {"u_main"}
    assert not home.exists()
