"""Allocations in annotations and what they charge (spec/scheduler 2.3, 4.10, reports B31, B32)."""

import msgspec
import pytest

from hami.core.allocation import charge, container_kinds, encode_allocation, init_done, read_allocation
from hami.core.errors import DecodeError
from hami.core.model import ContainerKind, Use
from hami.core.objects import Pod
from tests.core.build import REGISTRY, pod, share

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
SIDECAR_POD = pod({}, {}, inits=({}, {"restartPolicy": "Always"}))
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"


def test_kinds_follow_the_order_of_annotations() -> None:
    assert container_kinds(SIDECAR_POD) == (INIT, SIDECAR, APP, APP)


def test_an_allocation_is_written_under_both_keys_and_read_back() -> None:
    allocation = {"NVIDIA": ((share("GPU-b"),), ())}
    annotations = encode_allocation(allocation, REGISTRY)
    assert annotations == {TO_ALLOCATE: "GPU-b,NVIDIA,3000,30:;;", ALLOCATED: "GPU-b,NVIDIA,3000,30:;;"}
    assert read_allocation(annotations, REGISTRY, "pod default/p") == allocation


@pytest.mark.parametrize("annotations", [{}, {ALLOCATED: ""}, {ALLOCATED: ";;"}, {TO_ALLOCATE: "GPU-b,NVIDIA,1,1:;"}])
def test_a_pod_without_record_has_no_allocation(annotations: dict[str, str]) -> None:
    assert read_allocation(annotations, REGISTRY, "pod default/p") == {}


def test_an_unreadable_record_names_pod_and_key() -> None:
    with pytest.raises(DecodeError, match=f"pod default/p annotation {ALLOCATED}"):
        read_allocation({ALLOCATED: "??"}, REGISTRY, "pod default/p")


@pytest.mark.parametrize(
    ("kinds", "containers", "uses"),
    [
        # Apps add up; several containers on one card are several slots (upstream 5c1374fb).
        ((APP, APP), [("GPU-a", 1000, 10), ("GPU-a", 2000, 20)], {"GPU-a": (2, 3000, 30)}),
        # The larger of the largest init container and the sum of the apps.
        ((INIT, INIT, APP), [("GPU-a", 9000, 5), ("GPU-a", 8000, 50), ("GPU-a", 1000, 10)], {"GPU-a": (1, 9000, 50)}),
        ((INIT, APP), [("GPU-a", 500, 5), ("GPU-b", 1000, 10)], {"GPU-a": (1, 500, 5), "GPU-b": (1, 1000, 10)}),
        # Sidecars add to that.
        ((SIDECAR, INIT, APP), [("GPU-a", 6000, 10), ("GPU-a", 9, 90), ("GPU-a", 6000, 9)], {"GPU-a": (2, 12000, 100)}),
        # MIG slices of 2.5 to 2.9.
        ((APP, APP), [("GPU-a[1-0]", 100, 14), ("GPU-a[1-1]", 100, 14)], {"GPU-a": (2, 200, 28)}),
        # Segments were left out: which container is meant is unknown, so all add up.
        ((INIT, APP, APP), [("GPU-a", 100, 1), ("GPU-a", 100, 1)], {"GPU-a": (2, 200, 2)}),
        # Segments beyond the pod's containers.
        ((INIT,), [("GPU-a", 100, 1), ("GPU-b", 100, 1)], {"GPU-a": (1, 100, 1), "GPU-b": (1, 100, 1)}),
    ],
)  # fmt: skip
def test_the_charge_follows_the_max_rule(
    kinds: tuple[ContainerKind, ...], containers: list[tuple[str, int, int]], uses: dict[str, tuple[int, int, int]]
) -> None:
    allocation = {"NVIDIA": tuple((share(*each),) for each in containers)}
    assert charge(allocation, kinds, REGISTRY) == {card: Use(*use) for card, use in uses.items()}


def test_finished_init_containers_hold_nothing() -> None:
    allocation = {"NVIDIA": ((share("GPU-a", 9000, 100),), (share("GPU-a", 1000, 10),))}
    assert charge(allocation, (INIT, APP), REGISTRY, init_finished=True) == {"GPU-a": Use(1, 1000, 10)}


def test_shares_of_an_unknown_vendor_are_still_charged() -> None:
    assert charge({"DCU": ((share("DCU-0"),),)}, (APP,), REGISTRY) == {"DCU-0": Use(1, 3000, 30)}


@pytest.mark.parametrize(
    ("statuses", "done"),
    [
        ([], False),
        ([{"name": "i0", "state": {"terminated": {"exitCode": 0}}}], True),
        ([{"name": "i0", "state": {"terminated": {"exitCode": 1}}}], False),
        ([{"name": "i0", "state": {}}], False),
        ([{"name": "i0"}], False),
        ([{"name": "i1", "state": {"terminated": {"exitCode": 0}}}], False),
    ],
)
def test_init_is_done_when_every_ordinary_init_container_ended_well(statuses: list[object], done: bool) -> None:
    body = msgspec.to_builtins(SIDECAR_POD)
    body["status"] = {"phase": "Pending", "initContainerStatuses": statuses}
    assert init_done(msgspec.convert(body, Pod)) is done


def test_uses_add_and_subtract() -> None:
    assert Use(3, 30, 300).minus(Use(1, 10, 100)) + Use(1, 1, 1) == Use(3, 21, 201)


def test_only_vendors_that_the_pod_uses_are_written() -> None:
    assert encode_allocation({}, REGISTRY) == {}


def test_a_pod_without_init_containers_is_done() -> None:
    assert init_done(pod({}))
