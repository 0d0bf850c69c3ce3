"""The worked vectors of spec/scheduler.md 12 through kube-scheduler, kube-apiserver and our extender.

The nodes are objects without a kubelet: what is tested is the decision, its events and its annotations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fakenodes import FakeCard, add_fake_node, pretend_allocated
from tests.cluster.pods import (
    BIND_PHASE,
    CHOSEN_NODE,
    NODE_LOCK,
    TO_ALLOCATE,
    Device,
    Event,
    Limits,
    Workspace,
    allocation,
    annotation,
    gpu_pod,
)
from tests.cluster.processes import PATIENCE_S, wait_until

A, B = "GPU-a", "GPU-b"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
MIB_OF_FIRST, CORES_OF_FIRST = 4096, 30


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        yield cluster


class Vector:
    """Nodes with the cards A and B each; a pod uses A with 1 slot, 30 cores, 4096 MiB."""

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.nodes: list[str] = []

    def add_node(self, load: bool = True) -> str:
        """One more node of the vectors, named after the test."""
        name = f"{self.space.name}-n{len(self.nodes) + 1}"
        cards = [FakeCard(f"{card}-{name}") for card in (A, B)]
        add_fake_node(self.space.api, name, cards, {"vector": self.space.name})
        self.nodes.append(name)
        if load:
            limits = {"gpu": 1, "gpumem": MIB_OF_FIRST, "gpucores": CORES_OF_FIRST}
            chosen = {"nvidia.com/use-gpuuuid": f"{A}-{name}"}
            pod = gpu_pod(f"first-{name}", limits, annotations=chosen, nodeSelector=self.selector)
            self.space.add(pod)
            pretend_allocated(self.space.api, self.space.wait_bound(f"first-{name}"))
        else:
            self._wait_known(name)
        return name

    def _wait_known(self, name: str) -> None:
        """Return when both schedulers know the node: a pod that fits nowhere else was bound to it and is gone again."""
        self.space.add(gpu_pod(f"probe-{name}", {"gpu": 1, "gpumem": 1}, nodeSelector={"kubernetes.io/hostname": name}))
        pretend_allocated(self.space.api, self.space.wait_bound(f"probe-{name}"))
        self.space.remove(f"probe-{name}")

    @property
    def selector(self) -> dict[str, str]:
        """Keeps pods on this test's nodes."""
        return {"vector": self.space.name}

    def ask(self, name: str, limits: Limits, *more: Limits, **annotations: str) -> None:
        """Create a pod; `policy` is the card policy, other keys are annotations of `nvidia.com/`."""
        keys = {(GPU_POLICY if key == "policy" else f"nvidia.com/{key}"): value for key, value in annotations.items()}
        self.space.add(gpu_pod(name, limits, *more, annotations=keys, nodeSelector=self.selector))

    def place(self, name: str, limits: Limits, **annotations: str) -> list[Device]:
        """Create a pod of one container and return its cards, ids without the node's name."""
        self.ask(name, limits, **annotations)
        pod = self.space.wait_bound(name)
        pretend_allocated(self.space.api, pod)
        (devices,) = allocation(pod)
        suffix = f"-{pod['spec']['nodeName']}"
        return [Device(one.uuid.removesuffix(suffix), one.type, one.memory_mib, one.cores) for one in devices]

    def told(self, name: str, *messages: str, exactly: bool = False) -> str:
        """Returns once our events say that the pod fits nowhere, with at least or exactly these messages beside that;
        what kube-scheduler says of it."""
        summary = f"no available node, {len(self.nodes)} nodes do not meet"

        def said() -> str:
            events = self.space.events(name)
            ours = sorted(event.message for event in events if event.reason == "FilteringFailed")
            wanted = sorted([*messages, summary])
            assert ours == wanted if exactly else set(ours) >= set(wanted), events
            assert {event.type for event in events} == {"Warning"}, events
            return "\n".join(event.message for event in events if event.reason == "FailedScheduling")

        return wait_until(said, PATIENCE_S, f"pod {name} told so")


@pytest.fixture
def vector(workspace: Workspace) -> Iterator[Vector]:
    made = Vector(workspace)
    yield made
    for name in made.nodes:
        workspace.api.delete(f"/api/v1/nodes/{name}")


ONE = {"gpu": 1, "gpumem": 1000, "gpucores": 10}


@pytest.mark.parametrize(
    ("limits", "policy", "expected"),
    [
        pytest.param(ONE, "spread", Device(B, "NVIDIA", 1000, 10), id="spread takes the empty card"),
        pytest.param(ONE, "", Device(B, "NVIDIA", 1000, 10), id="spread is the default"),
        pytest.param(ONE, "binpack", Device(A, "NVIDIA", 1000, 10), id="binpack takes the used card"),
        pytest.param(ONE, "mutex", Device(B, "NVIDIA", 1000, 10), id="mutex takes the idle card"),
        pytest.param({"gpu": 1}, "spread", Device(B, "NVIDIA", 16384, 100), id="bare count is the whole card"),
        pytest.param({"gpu": 1, "gpucores": 100}, "spread", Device(B, "NVIDIA", 16384, 100), id="exclusive, spread"),
        pytest.param(
            {"gpu": 1, "gpucores": 100},
            "binpack",
            Device(B, "NVIDIA", 16384, 100),
            id="exclusive, binpack: A lacks memory",
        ),
        pytest.param(
            {"gpu": 1, "gpumem": 1000, "gpucores": 100},
            "binpack",
            Device(B, "NVIDIA", 1000, 100),
            id="exclusive, binpack: A lacks cores",
        ),
        pytest.param(
            {"gpu": 1, "gpumem-percentage": 50, "gpucores": 10},
            "binpack",
            Device(A, "NVIDIA", 8192, 10),
            id="percentage of the chosen card",
        ),
        pytest.param({"gpumem": 3000}, "spread", Device(B, "NVIDIA", 3000, 0), id="count added by the webhook"),
    ],
)
def test_card_choice(vector: Vector, limits: Limits, policy: str, expected: Device) -> None:
    vector.add_node()
    annotations = {"policy": policy} if policy else {}
    assert vector.place("p", limits, **annotations) == [expected]


def test_node_score_in_the_event_is_that_of_the_load_before(vector: Vector) -> None:
    name = vector.add_node()
    vector.place("p", ONE)
    event = vector.space.wait_event("p", "FilteringSucceed")
    assert event == Event(
        "Normal", "FilteringSucceed", f"find fit node({name}), 0 nodes not fit, 1 nodes fit({name}:3.25)"
    )


def test_weights_change_nothing_where_one_card_is_empty_and_are_read(vector: Vector) -> None:
    vector.add_node()
    weights = {"hami.io/device-scoring-weights": "slot=1,core=1,memory=3", GPU_POLICY: "binpack"}
    vector.space.add(gpu_pod("p", ONE, annotations=weights, nodeSelector=vector.selector))
    (devices,) = allocation(vector.space.wait_bound("p"))
    assert devices[0].uuid.startswith(A)


def test_second_mutex_pod_finds_both_cards_in_use(vector: Vector) -> None:
    name = vector.add_node()
    vector.place("first", ONE, policy="mutex")
    vector.ask("second", ONE, policy="mutex")
    failed = vector.told("second", f"1 nodes ExclusiveDeviceAllocateConflict({name})")
    assert "2/2 ExclusiveDeviceAllocateConflict" in failed


def test_too_few_cards_with_enough_memory(vector: Vector) -> None:
    name = vector.add_node()
    vector.ask("p", {"gpu": 2, "gpumem": 13000})
    reasons = [
        f"1 nodes {reason}({name})" for reason in ("AllocatedCardsInsufficientRequest", "CardInsufficientMemory")
    ]
    failed = vector.told("p", *reasons, exactly=True)
    assert "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory" in failed


def test_more_cards_than_the_node_has(vector: Vector) -> None:
    vector.add_node()
    vector.ask("p", {"gpu": 3, "gpumem": 100})
    assert "NodeInsufficientDevice" in vector.told("p", exactly=True)


def test_reasons_are_counted_over_nodes(vector: Vector) -> None:
    names = ",".join([vector.add_node(), vector.add_node()])
    vector.ask("p", {"gpu": 2, "gpumem": 13000})
    reasons = ("AllocatedCardsInsufficientRequest", "CardInsufficientMemory")
    vector.told("p", *(f"2 nodes {reason}({names})" for reason in reasons), exactly=True)


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", 0), ("spread", 1)])
def test_node_policy(vector: Vector, policy: str, chosen: int) -> None:
    nodes = [vector.add_node(), vector.add_node(load=False)]
    annotations = {"hami.io/node-scheduler-policy": policy}
    vector.space.add(gpu_pod("p", ONE, annotations=annotations, nodeSelector=vector.selector))
    assert vector.space.wait_bound("p")["spec"]["nodeName"] == nodes[chosen]


@pytest.mark.parametrize(
    ("key", "value", "card"),
    [
        ("use-gpuuuid", "GPU-a-{node}", A),
        ("nouse-gpuuuid", "GPU-b-{node}", A),
        ("use-gputype", "a100,h100", B),
        ("nouse-gputype", "t4", B),
    ],
)
def test_selectors(vector: Vector, key: str, value: str, card: str) -> None:
    name = vector.add_node()
    (device,) = vector.place("p", ONE, **{key: value.format(node=name)})
    assert device.uuid == card


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("use-gputype", "h100", "CardTypeMismatch"),
        ("nouse-gputype", "A100", "CardTypeMismatch"),
        ("use-gpuuuid", "GPU-none", "CardUuidMismatch"),
    ],
)
def test_selectors_that_nothing_meets(vector: Vector, key: str, value: str, reason: str) -> None:
    name = vector.add_node()
    vector.ask("p", ONE, **{key: value})
    vector.told("p", f"1 nodes {reason}({name})")


def test_two_containers_with_an_empty_one_between(vector: Vector) -> None:
    vector.add_node(load=False)
    vector.ask("p", {"gpu": 1, "gpumem": 3000, "gpucores": 30}, {}, {"gpu": 2, "gpumem": 2000})
    first, between, last = allocation(vector.space.wait_bound("p"))
    assert [(one.memory_mib, one.cores) for one in first] == [(3000, 30)]
    assert between == []
    assert [(one.memory_mib, one.cores) for one in last] == [(2000, 0), (2000, 0)]
    assert len({one.uuid for one in last}) == 2


def test_annotations_and_token_between_bind_and_allocate(vector: Vector) -> None:
    node = vector.add_node(load=False)
    vector.ask("p", {"gpu": 1, "gpumem": 3000, "gpucores": 30}, {})
    pod = vector.space.wait_bound("p")
    (device,), empty = allocation(pod)
    assert empty == []
    assert annotation(pod, TO_ALLOCATE) == f"{device.uuid},NVIDIA,3000,30:;;"
    assert annotation(pod, CHOSEN_NODE) == node
    assert annotation(pod, BIND_PHASE) == "allocating"
    assert annotation(pod, "hami.io/bind-time").isdecimal()
    assert annotation(pod, "hami.io/vgpu-time").isdecimal()
    token = annotation(vector.space.api.get(f"/api/v1/nodes/{node}"), NODE_LOCK)
    assert token.split(",")[1:] == [vector.space.name, "p"]
    bound = vector.space.wait_event("p", "BindingSucceed")
    assert bound.message == f"Successfully binding node [{node}] to {vector.space.name}/p"
