"""The label on pods that upstream's plugin has served (spec/scheduler 2.1, and 11.1 no. 23: names too long for one)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from hami.core.errors import ApiError
from hami.core.keys import VGPU_NODE
from hami.core.objects import Pod
from hami.placement.pod_labels import PodLabels
from tests.placement.fake_api import FakeApi
from tests.placement.fakes import annotated, make_pod
from tests.tools.waiting import until

ONE = "GPU-0,NVIDIA,1000,10:;"
LONGEST = "n" * 63


class Watched:
    """PodLabels over an API; `on` is what the watch shows."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.leads = True
        self.labels = PodLabels(self.api, lambda: self.leads)

    def on(self, pod: Pod) -> None:
        self.labels.on_pod(self.api.put_pod(pod))

    async def is_idle(self) -> None:
        """Everything that was to be written has been: a pod that certainly is comes last."""
        self.hand_over("last", "n1")
        await until(lambda: self.label("last") == "n1", "the last pod's label")

    def hand_over(self, name: str, node: str, phase: str = "success") -> None:
        self.on(annotated(make_pod(name), node, ONE, phase="allocating"))
        self.on(annotated(make_pod(name), node, ONE, phase=phase))

    def label(self, name: str) -> str:
        return self.api.pod(name).labels.get(VGPU_NODE, "")


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    task = asyncio.create_task(made.labels.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("node", "written"), [("n1", True), (LONGEST, True), (LONGEST + "n", False), ("n" * 253, False)]
)
async def test_a_served_pod_is_labelled_where_the_name_is_a_label_value(
    watched: Watched, node: str, written: bool
) -> None:
    watched.hand_over("p", node)
    await watched.is_idle()
    assert watched.label("p") == (node if written else "")


@pytest.mark.parametrize("why", ["failed", "follows", "labelled", "seen too late", "deleted", "another phase"])
async def test_nothing_is_written_where_nothing_is_called_for(watched: Watched, why: str) -> None:
    match why:
        case "failed" | "another phase":
            watched.hand_over("p", "n1", phase="failed" if why == "failed" else "")
        case "follows":
            watched.leads = False
            watched.hand_over("p", "n1")
            watched.leads = True
        case "labelled":
            pod = annotated(make_pod("p"), "n1", ONE, phase="allocating")
            meta = msgspec.structs.replace(pod.metadata, labels={VGPU_NODE: "n1"})
            watched.on(msgspec.structs.replace(pod, metadata=meta))
            served = annotated(watched.api.pod("p"), "n1", ONE, phase="success")
            watched.on(served)
        case "seen too late":
            watched.on(annotated(make_pod("p"), "n1", ONE, phase="success"))
        case "deleted":
            watched.on(annotated(make_pod("p"), "n1", ONE, phase="allocating"))
            watched.labels.on_pod_deleted("uid-p")
            watched.on(annotated(make_pod("p"), "n1", ONE, phase="success"))
    await watched.is_idle()
    assert ("patch_pod", "p") not in watched.api.calls


async def test_a_write_that_fails_holds_up_no_other(watched: Watched) -> None:
    watched.api.faults["patch_pod", "before"] = [ApiError(403, "Forbidden", "no")]
    watched.hand_over("p", "n1")
    await watched.is_idle()
    assert watched.label("p") == ""
