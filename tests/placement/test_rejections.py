"""Report B92: nodes whose kubelet rejects pods come last, then pause, and come back; operators are told once."""

from __future__ import annotations

import msgspec
import pytest

from hami.core.objects import Pod
from hami.placement.engine import Engine, NodeNames
from hami.placement.rejections import FORGET_S, LONGEST_PAUSE_S, PAUSE_AFTER, SET_BACK_AFTER
from hami.placement.world import World
from tests.placement.fake_api import FakeEvents
from tests.placement.fakes import FakeClock, annotated, container, make_node, make_pod, make_world

MESSAGE = "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"


class Cluster:
    """Two nodes; under binpack n1 is preferred, because something runs there."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.world: World = make_world(self.clock)
        self.events = self.world.rejections.sink = FakeEvents()
        self.engine = Engine(self.world)
        self.number = 0
        for name in ("n1", "n2"):
            self.world.on_node(make_node(name))
        self.world.on_pod(annotated(make_pod("old"), "n1", "GPU-0,NVIDIA,1000,10:;"))

    def shown(self, pod: Pod) -> None:
        self.world.on_pod(pod)
        self.world.rejections.saw(pod, self.clock.monotonic_s(), self.clock.unix_s())

    def fails(
        self, node: str, reason: str = "UnexpectedAdmissionError", *, ours: bool = True, message: str = MESSAGE
    ) -> None:
        self.number += 1
        pod = annotated(make_pod(f"x{self.number}"), node, "GPU-0,NVIDIA,100,0:;")
        if not ours:
            pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations={}))
        status = msgspec.structs.replace(pod.status, phase="Failed", reason=reason, message=message)
        for _ in range(2):
            self.shown(msgspec.structs.replace(pod, status=status))

    def runs(self, node: str, bound_at_unix_s: float) -> None:
        self.number += 1
        pod = make_pod(f"r{self.number}", annotations={"hami.io/bind-time": str(int(bound_at_unix_s))})
        pod = annotated(pod, node, "GPU-0,NVIDIA,1,0:;", phase="success")
        self.shown(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Running")))

    def choice(self, *names: str) -> str:
        """The node of a new pod, which goes away again."""
        self.number += 1
        pod = make_pod(f"new{self.number}", container(1, 100))
        answer = self.engine.filter(pod, NodeNames.of(names or ("n1", "n2")))
        self.world.on_pod_deleted("default", pod.metadata.name, pod.metadata.uid)
        return answer.node or " ".join(answer.failed.values())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"])
def test_b92_after_some_rejections_in_a_row_a_node_comes_last(cluster: Cluster, reason: str) -> None:
    for number in range(SET_BACK_AFTER):
        assert cluster.choice() == "n1", number
        cluster.fails("n1", reason)
    assert cluster.choice() == "n2"
    assert cluster.choice("n1") == "n1"
    (told,) = cluster.events.recorded
    assert "PodsRejected" in str(told)
    assert MESSAGE in str(told)


@pytest.mark.parametrize(
    ("reason", "ours"), [("OutOfcpu", True), ("Evicted", True), ("", True), ("UnexpectedAdmissionError", False)]
)
def test_b92_other_failures_say_nothing_about_cards(cluster: Cluster, reason: str, ours: bool) -> None:
    for _ in range(2 * PAUSE_AFTER):
        cluster.fails("n1", reason, ours=ours)
    assert cluster.choice() == "n1"
    assert cluster.events.recorded == []


def test_b92_more_rejections_pause_the_node_longer_each_time(cluster: Cluster) -> None:
    for _ in range(PAUSE_AFTER):
        cluster.fails("n1")
    assert "kubelet rejected the last 5 pods" in cluster.choice("n1")
    cluster.clock.advance(9.9)
    assert "takes no new shares for now" in cluster.choice("n1")
    cluster.clock.advance(0.2)
    assert cluster.choice("n1") == "n1"
    assert cluster.choice() == "n2"
    cluster.fails("n1")
    cluster.clock.advance(19.9)
    assert "for now" in cluster.choice("n1")
    cluster.clock.advance(0.2)
    assert cluster.choice("n1") == "n1"
    for _ in range(20):
        cluster.fails("n1")
    cluster.clock.advance(LONGEST_PAUSE_S + 1)
    assert cluster.choice("n1") == "n1"
    assert len(cluster.events.recorded) == 2


@pytest.mark.parametrize(
    "said",
    [
        "rpc error: code = Unavailable desc = error reading from server: EOF",
        "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
        "can't allocate unregistered device nvidia.com/gpu",
    ],
)
def test_b92_a_plugin_that_is_away_sets_back_but_does_not_pause(cluster: Cluster, said: str) -> None:
    """kubelet offers nothing meanwhile, and the plugin's return must not wait for a pause to end."""
    for _ in range(3 * PAUSE_AFTER):
        cluster.fails("n1", message=f"Pod was rejected: Allocate failed due to {said}, which is unexpected")
    assert cluster.choice() == "n2"
    assert cluster.choice("n1") == "n1"
    assert len(cluster.events.recorded) == 1
    for _ in range(PAUSE_AFTER):
        cluster.fails("n1")
    assert "takes no new shares for now" in cluster.choice("n1")


def test_b92_there_is_no_hot_loop(cluster: Cluster) -> None:
    """A controller that makes a new pod whenever one fails: in ten hours a pod every five minutes."""
    made = 0
    for _ in range(10 * 3600):
        if cluster.choice("n1") == "n1":
            made += 1
            cluster.fails("n1")
        cluster.clock.advance(1.0)
    assert 100 <= made <= 130


def test_b92_a_pod_that_runs_ends_it(cluster: Cluster) -> None:
    for _ in range(PAUSE_AFTER):
        cluster.fails("n1")
    cluster.runs("n1", cluster.clock.unix_s() - 3600)
    assert "for now" in cluster.choice("n1")
    cluster.runs("n1", cluster.clock.unix_s() + 1)
    assert cluster.choice() == "n1"


@pytest.mark.parametrize("how", ["time", "node gone"])
def test_b92_old_rejections_are_forgotten(cluster: Cluster, how: str) -> None:
    for _ in range(PAUSE_AFTER):
        cluster.fails("n1")
    if how == "time":
        cluster.clock.advance(FORGET_S)
    else:
        cluster.world.on_node_deleted("n1")
        cluster.world.on_node(make_node("n1", uid="other"))
    assert cluster.choice() == "n1"


def test_b92_other_nodes_go_on(cluster: Cluster) -> None:
    for _ in range(PAUSE_AFTER):
        cluster.fails("n2")
    assert cluster.choice() == "n1"
    assert "for now" in cluster.choice("n2")
