"""Mode mig: what a plugin finds when it starts: after a kill at any step, a reboot, beside pods of older releases."""

from __future__ import annotations

import asyncio

import msgspec

from hami.core.codec import encode_mig_allocations
from hami.core.keys import MIG_ALLOCATIONS
from hami.core.model import MigPlacement
from hami.nvml.simulated_mig import SimulatedGeometry, mig_uuid
from hami.sim.apiserver.faults import Fault
from tests.deviceplugin.bench import A, B
from tests.deviceplugin.calls import refused
from tests.deviceplugin.mig_node import MigNode


async def test_killed_before_the_annotation_is_written(mig: MigNode) -> None:
    """The instance is there, nobody was told: the next plugin finds it by its place."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    fault = mig.node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=30, times=1))
    call = asyncio.create_task(mig.node.kubelet.allocate([f"{A}-0"]))
    await mig.node.until(lambda: fault.hits, "the write")
    assert await mig.places() == [(3, 0)]
    await mig.node.kill_plugin(call)
    await (await mig.start()).mig.look()
    assert await mig.places() == [(3, 0)]
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(A, 1, 0)
    assert (await mig.reservations("p1"))[0].mig_uuid == mig_uuid(A, 1, 0)


async def test_killed_between_gpu_instance_and_compute_instance(mig: MigNode) -> None:
    """A half made instance serves nobody: it is taken away, and made whole for the pod that holds its place."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.stop_plugin()
    geometry = SimulatedGeometry(mig.node.kubelet.folder / "hami/simulated-mig.json")
    geometry.create_gpu_instance(await mig.card(), 2, MigPlacement(0, 4))
    geometry.create_gpu_instance(await mig.card(B), 2, MigPlacement(0, 4))
    await mig.start()
    answer = (await mig.node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(A, 1, 0)
    assert await mig.places() == [(3, 0)]
    assert (await mig.card(B)).mig_instances == ()


async def test_killed_after_the_annotation_was_written(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    await mig.pod("p2", [(A, "1g.5gb", 4)])
    await mig.start()
    await mig.node.kubelet.allocate([f"{A}-0"])
    assert await mig.places() == [(3, 0), (1, 4)]
    await mig.delete("p1")
    await mig.until_places([(1, 4)])


async def test_after_a_reboot_the_instances_of_live_pods_are_made_again(mig: MigNode) -> None:
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    (mig.node.kubelet.folder / "hami/simulated-mig.json").unlink()
    assert not (await mig.card()).mig_enabled
    await mig.start()
    await mig.until_places([(3, 4)])
    assert (await mig.card()).mig_instances[0].compute[0].uuid == (await mig.reservations("p1"))[0].mig_uuid


async def test_instances_of_pods_of_older_releases_are_left_alone(mig: MigNode) -> None:
    """HAMi 2.5 to 2.9 wrote a number instead of a place: what such a pod holds is not known."""
    plugin = await mig.start()
    geometry = SimulatedGeometry(mig.node.kubelet.folder / "hami/simulated-mig.json")
    await mig.node.bound_pod("old", f"{A}[0-1],NVIDIA,4864,15:;", token=False)
    geometry.create_compute_instance(
        await mig.card(), geometry.create_gpu_instance(await mig.card(), 2, MigPlacement(0, 4))
    )
    await plugin.mig.look()
    assert await mig.places() == [(3, 0)]
    await mig.pod("p1", [(A, "1g.5gb", 0)])
    mig.wait_for_places(0.3)
    assert "may be that of default/old" in await refused(mig.node.kubelet.allocate([f"{A}-0"]))
    assert await mig.places() == [(3, 0)]
    await mig.delete("old")
    await mig.until_places([])


async def test_t30_one_instance_that_cannot_be_made_again_stops_no_other(mig: MigNode) -> None:
    """The driver gives it another id, which the running container does not know."""
    await mig.start()
    await mig.pod("p1", [(A, "3g.20gb", 0)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.pod("p2", [(A, "3g.20gb", 4)])
    await mig.node.kubelet.allocate([f"{A}-0"])
    await mig.node.stop_plugin()
    (first,) = await mig.reservations("p1")
    other = encode_mig_allocations([msgspec.structs.replace(first, mig_uuid="MIG-of-another-driver")])
    await mig.node.writer.patch_pod_annotations("default", "p1", {MIG_ALLOCATIONS: other}, uid="")
    (mig.node.kubelet.folder / "hami/simulated-mig.json").unlink()
    plugin = await mig.start()
    await mig.until_places([(3, 4)])
    await plugin.mig.look()
    assert await mig.places() == [(3, 4)]
    lost = [message for _, reason, message in mig.node.events.on_nodes if reason == "MigInstanceLost"]
    assert len(lost) == 1
    assert "MIG-of-another-driver of pod default/p1 is gone" in lost[0]
