"""From pods to requests (spec/scheduler 4.1, reports B10, B11, B13, B14, B31)."""

import pytest

from hami.core.device_type import Refusal
from hami.core.model import ContainerKind, DeviceRequest, Policies, Weights
from hami.core.request import pod_request, split_words
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import REGISTRY, gpu, pod

DEFAULTS = Policies()


def request(count: int = 1, mem: int = 0, percent: int | None = None, cores: int = 0) -> DeviceRequest:
    percent = percent if percent is not None else 0 if mem else 100
    return DeviceRequest("NVIDIA", count, mem, percent, cores)


@pytest.mark.parametrize(
    ("container", "config", "expected"),
    [
        (gpu(), {}, request()),
        (gpu(2, mem=3000, cores=30), {}, request(2, 3000, cores=30)),
        (gpu(mem="5k"), {}, request(mem=5000)),
        (gpu(percent=25), {}, request(percent=25)),
        (gpu(percent=0), {}, request()),
        (gpu(mem=0, percent=25), {}, request(percent=25)),
        (gpu(mem=1000, percent=25), {}, request(mem=1000, percent=25)),
        (gpu(mem=3), {"memory_factor": 1024}, request(mem=3072)),
        (gpu(), {"default_memory": 2000, "default_cores": 5}, request(mem=2000, cores=5)),
        (gpu(percent=10, cores=0), {"default_memory": 2000, "default_cores": 5}, request(percent=10)),
        ({"resources": {"requests": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "7"}}}, {}, request(mem=7)),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}}},
            {},
            request(2),
        ),
        (gpu(0, mem=100), {}, None),
        ({"limits": {"nvidia.com/gpumem": 100}}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_container_asks_for(
    container: dict[str, object], config: dict[str, int], expected: DeviceRequest | None
) -> None:
    shape = pod_request(pod(container), (Nvidia(NvidiaConfig(**config)),), DEFAULTS)  # type: ignore[arg-type]
    assert not isinstance(shape, Refusal)
    assert shape.containers[0].devices == ((expected,) if expected else ())
    assert shape.asks_for_devices is (expected is not None)
    assert hash(shape) == hash(pod_request(pod(container), (Nvidia(NvidiaConfig(**config)),), DEFAULTS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (gpu(mem="16Gi"), "invalid nvidia.com/gpumem value 16Gi in container c0: nvidia.com/gpumem counts MiB: write"),
        (gpu(mem="16Gi"), "write 16384"),
        (gpu(mem="8Gi"), "write 8192"),
        (gpu(mem="512Mi"), "write 512"),
        (gpu(mem="16G"), "write 15258"),
        (gpu(mem="1Ki"), "without a suffix"),
        (gpu(mem=2147483648), "must be between 0 and 2147483647; nvidia.com/gpumem counts MiB"),
        (gpu(mem="18014398509481985"), "must be between 0 and 2147483647"),
        (gpu(mem=-1), "must be between"),
        (gpu(mem="2.5"), "2.5 is not a whole number"),
        (gpu(mem=""), "is not a quantity"),
        (gpu(cores=101), "invalid nvidia.com/gpucores value 101 in container c0: must be an integer between 0 and 100"),
        (gpu(cores=-1), "between 0 and 100"),
        (gpu(percent=101), "must be an integer between 0 and 100"),
        (gpu(percent="12.5"), "must be an integer between 0 and 100"),
        (gpu(-1), "invalid nvidia.com/gpu value -1"),
        (gpu(mem=1, count=2147483648), "invalid nvidia.com/gpu value"),
        ({"limits": {"nvidia.com/gpu": "500m"}}, "500m is not a whole number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["app", "init"])
def test_numbers_that_cannot_be_meant_are_refused(container: dict[str, object], words: str, place: str) -> None:
    subject = pod(container) if place == "app" else pod({}, inits=({"name": "c0", **container},))
    refusal = pod_request(subject, REGISTRY, DEFAULTS)
    assert isinstance(refusal, Refusal)
    assert words in refusal.message


def test_a_memory_factor_bounds_the_number() -> None:
    registry = (Nvidia(NvidiaConfig(memory_factor=1024)),)
    refusal = pod_request(pod(gpu(mem=2097152)), registry, DEFAULTS)
    assert isinstance(refusal, Refusal)
    assert "between 0 and 2097151; nvidia.com/gpumem counts units of 1024 MiB" in refusal.message
    suffixed = pod_request(pod(gpu(mem="16Gi")), registry, DEFAULTS)
    assert isinstance(suffixed, Refusal)
    assert suffixed.message.endswith("counts units of 1024 MiB: write 16")


def test_every_container_has_an_entry_in_annotation_order() -> None:
    shape = pod_request(pod(gpu(), {}, inits=({}, {**gpu(mem=5), "restartPolicy": "Always"})), REGISTRY, DEFAULTS)
    assert not isinstance(shape, Refusal)
    assert [(each.kind, len(each.devices)) for each in shape.containers] == [
        (ContainerKind.INIT, 0),
        (ContainerKind.SIDECAR, 1),
        (ContainerKind.APP, 1),
        (ContainerKind.APP, 0),
    ]


@pytest.mark.parametrize(
    ("annotations", "policies"),
    [
        ({}, Policies("binpack", ("spread",))),
        ({"hami.io/node-scheduler-policy": "spread"}, Policies("spread", ("spread",))),
        ({"hami.io/gpu-scheduler-policy": " numa, binpack ,,"}, Policies("binpack", ("numa", "binpack"))),
        (
            {"hami.io/device-scoring-weights": "slot=1, core=0,memory=3"},
            Policies("binpack", ("spread",), Weights(1, 0, 3)),
        ),
        ({"hami.io/node-scheduler-policy": "", "hami.io/gpu-scheduler-policy": ","}, Policies("binpack", ("spread",))),
        ({"hami.io/node-scheduler-policy": "spraed"}, Policies("binpack", ("spread",))),
        ({"hami.io/node-scheduler-policy": "spread,binpack"}, Policies("binpack", ("spread",))),
        ({"hami.io/node-scheduler-policy": "numa"}, Policies("binpack", ("spread",))),
        ({"hami.io/gpu-scheduler-policy": "binpack,numma"}, Policies("binpack", ("spread",))),
    ],
)
def test_policies_come_from_annotations_over_defaults(annotations: dict[str, str], policies: Policies) -> None:
    shape = pod_request(pod(gpu(), annotations=annotations), REGISTRY, DEFAULTS)
    assert not isinstance(shape, Refusal)
    assert shape.policies == policies


@pytest.mark.parametrize(
    ("annotations", "policies"),
    [
        ({}, Policies("spread", ("mutex", "numa"), Weights(3, 2, 1))),
        ({"hami.io/gpu-scheduler-policy": "binpack,numma"}, Policies("spread", ("mutex", "numa"), Weights(3, 2, 1))),
        ({"hami.io/gpu-scheduler-policy": "binpack"}, Policies("spread", ("binpack",), Weights(3, 2, 1))),
        ({"hami.io/node-scheduler-policy": "bnpack"}, Policies("spread", ("mutex", "numa"), Weights(3, 2, 1))),
    ],
)
def test_the_processs_own_policies_hold_where_a_pod_names_none(annotations: dict[str, str], policies: Policies) -> None:
    defaults = Policies("spread", ("mutex", "numa"), Weights(3, 2, 1))
    shape = pod_request(pod(gpu(), annotations=annotations), REGISTRY, defaults)
    assert not isinstance(shape, Refusal)
    assert shape.policies == policies


@pytest.mark.parametrize(
    "weights",
    ["", "slot=1", "slot=1,core=1,memory=1,slot=1", "slot=0,core=0,memory=0", "slot=-1,core=1,memory=1", "x=1",
     "slot=1.5,core=1,memory=1", "slot=1,core=1,memory=9999999999", "slot=1,core=1,memory="],
)  # fmt: skip
def test_weights_that_cannot_be_read_are_refused(weights: str) -> None:
    subject = pod(gpu(), annotations={"hami.io/device-scoring-weights": weights})
    refusal = pod_request(subject, REGISTRY, DEFAULTS)
    assert isinstance(refusal, Refusal)
    assert f"invalid hami.io/device-scoring-weights value '{weights}'" in refusal.message


def test_annotations_of_a_pod_without_devices_do_not_matter() -> None:
    shape = pod_request(pod({}, annotations={"hami.io/device-scoring-weights": "x"}), REGISTRY, DEFAULTS)
    assert not isinstance(shape, Refusal)
    assert shape.asks_for_devices is False


def test_comma_lists_skip_blanks() -> None:
    assert split_words(" GPU-a,,GPU-b , ") == ("GPU-a", "GPU-b")
    assert split_words("") == ()
