"""Reports B10, B11, B13, B14, B16: numbers in resources, wherever a container stands."""

from __future__ import annotations

from typing import Any

import pytest

from hami.vendors.nvidia.config import NvidiaConfig
from tests.reports.site import PLACES, Object, Site, gpu, placed, pod, refused

OWN = "hami-scheduler"


# --- B10, B11: percentages ---


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "cores",
    [pytest.param(each, id=f"B10-{each!s:.20}") for each in
     (150, 101, -1, "101", "-1", "1k", "100001m", "0.5", "50.5", 99.5, "1e3", 2**31, 2**63, "", " ", "50%", "fifty",
      "٥٠", "0x32", "--5", "5 0", "1e400", "9" * 400)],
)  # fmt: skip
async def test_b10_cores_out_of_range_are_refused(cores: object, place: str) -> None:
    await refused(Site(), placed(gpu(gpu=1, mem=1, cores=cores), place), "nvidia.com/gpucores", "between 0 and 100")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cores", [pytest.param(each, id=f"B10-{each}") for each in
                                   (0, 50, 100, "0", "100", "1e2", "50000m", "+7", "100.0", "1E1")])  # fmt: skip
async def test_b10_cores_in_range_are_left_as_they_are(cores: object, place: str) -> None:
    body = placed(gpu("x", gpu=1, mem=1, cores=cores), place)
    response = await Site().create(body)
    assert response["allowed"], response
    assert written(response["pod"], "x", "gpucores") == str(cores)


def written(body: Object, container: str, resource: str) -> str:
    """The quantity of a container, where it stands."""
    containers = [*body["spec"].get("initContainers", ()), *body["spec"]["containers"]]
    resources = next(each for each in containers if each["name"] == container)["resources"]
    return str({**resources.get("requests", {}), **resources.get("limits", {})}[f"nvidia.com/{resource}"])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "percent",
    [pytest.param(each, id=f"B11-{each!s:.20}") for each in
     (101, 150, -5, "500m", "12.5", 12.5, "101", "1k", "100.5", "99999m", "", " 5", "5 ", "50%", "half", "1e-1",
      "1e9", "5０", 2**32 + 50, "1Ki", "-1m", "nan", "inf")],
)  # fmt: skip
async def test_b11_percentages_out_of_range_are_refused(percent: object, place: str) -> None:
    body = placed(gpu("x", gpu=1, percent=percent), place)
    words = f"invalid nvidia.com/gpumem-percentage value {percent} in container x: must be an integer between 0 and 100"
    await refused(Site(), body, words)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("percent", [pytest.param(each, id=f"B11-{each}") for each in
                                     (1, 50, 100, "1", "33", "1e1", "5000m", "0.1k")])  # fmt: skip
async def test_b11_whole_percentages_are_accepted(percent: object, place: str) -> None:
    response = await Site().create(placed(gpu("x", gpu=1, percent=percent), place))
    assert response["allowed"], response
    assert written(response["pod"], "x", "gpumem-percentage") == str(percent)


async def test_b11_a_bad_percentage_counts_without_a_count_and_with_a_count_of_zero() -> None:
    for wishes in ({"percent": 101}, {"gpu": 0, "percent": 101}, {"gpu": 1, "mem": 5, "percent": "12.5"}):
        await refused(Site(), pod(gpu(**wishes)), "gpumem-percentage")


# --- B13, B14: memory ---


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("memory", "hint"),
    [pytest.param(memory, hint, id=f"B13-{memory}") for memory, hint in
     (("16Gi", "write 16384"), ("8Gi", "write 8192"), ("3Gi", "write 3072"), ("4096Mi", "write 4096"),
      ("1Ti", "write 1048576"), ("1Ki", "counts MiB"), ("0.5Gi", "write 512"), ("8G", "write 7629"),
      ("1E", "counts MiB"), (2**31, "counts MiB"), (2**54 + 1, "counts MiB"), (2**32, "counts MiB"),
      (2**32 + 1000, "counts MiB"), (2**63, "counts MiB"), (2**64 + 5, "counts MiB"), (-1, "counts MiB"),
      ("-16Gi", "counts MiB"), (-(2**31), "counts MiB"), ("1e10", "counts MiB"), ("9" * 60, "counts MiB"),
      ("16GiB", "counts MiB"), ("16gb", "counts MiB"), ("16 Gi", "counts MiB"), ("16GI", "counts MiB"),
      ("0x4000", "counts MiB"), (1e300, "counts MiB"))],
)  # fmt: skip
async def test_b13_memory_in_bytes_is_refused_with_what_was_meant(memory: object, hint: str, place: str) -> None:
    await refused(Site(), placed(gpu(gpu=1, mem=memory), place), "invalid nvidia.com/gpumem value", hint)


@pytest.mark.parametrize("factor", [1, 10, 1024])
async def test_b13_the_memory_factor_changes_the_unit_and_the_bound(factor: int) -> None:
    site = Site(NvidiaConfig(memory_factor=factor))
    highest = (2**31 - 1) // factor
    assert (await site.create(pod(gpu(gpu=1, mem=highest))))["allowed"]
    for memory in (highest + 1, 2**31, 2**54 + 1, "16Gi"):
        await refused(site, pod(gpu(gpu=1, mem=memory)), "nvidia.com/gpumem counts")


async def test_b13_without_the_hook_the_filter_refuses_the_same() -> None:
    site = Site()
    site.node("n1")
    for memory in ("16Gi", 2**31, 2**54 + 1, 2**32 + 1, -1):
        answer = await site.filter(pod(gpu(gpu=1, mem=memory)), "n1")
        assert answer["NodeNames"] is None
        assert "invalid nvidia.com/gpumem value" in answer["FailedNodes"]["n1"]
        assert "n1" in answer["FailedAndUnresolvableNodes"]
    assert list(site.world.ledger.claims()) == []


@pytest.mark.parametrize("place", [each for each in PLACES if each != "requests"])
@pytest.mark.parametrize(
    ("memory", "mib"),
    [pytest.param(memory, mib, id=f"B14-{memory}") for memory, mib in
     (("5k", 5000), ("3e3", 3000), ("3E3", 3000), ("3000000m", 3000), ("2.0", 2), (" 2".strip(), 2), ("+7", 7),
      ("0.5k", 500), ("5.", 5), ("1e+3", 1000), ("12000000u", 12), (4096, 4096), ("007", 7), (1e3, 1000))],
)  # fmt: skip
async def test_b14_kubernetes_quantities_are_read_and_the_allocation_shows_the_number(
    memory: object, mib: int, place: str
) -> None:
    site = Site()
    site.node("n1")
    response = await site.create(placed(gpu(gpu=1, mem=memory), place))
    assert response["allowed"], response
    assert (await site.filter(response["pod"], "n1"))["NodeNames"] == ["n1"]
    claim = site.world.ledger.get("uid-p")
    assert claim is not None
    assert [use.memory_mib for _, use in claim.charges] == [mib]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("memory", [pytest.param(each, id=f"B14-{each!r}") for each in
                                    ("2.5", "3001m", "", " ", "1.0001", "0.5", "5e-1", "k", ".", "5kk", "1e", "e3",
                                     2.5, "1,000", "1_000", "½", "５", "5\n", "\t5", "null", "5K")])  # fmt: skip
async def test_b14_what_is_no_whole_number_is_refused(memory: object, place: str) -> None:
    await refused(Site(), placed(gpu(gpu=1, mem=memory), place), "invalid nvidia.com/gpumem value", "counts MiB")


@pytest.mark.parametrize("count", [pytest.param(each, id=f"B14-count-{each!r}") for each in
                                   (-1, "0.5", "1.5", 2**31, "two", "", "1Gi ", "9" * 30)])  # fmt: skip
@pytest.mark.parametrize("place", PLACES)
async def test_b14_counts_too(count: object, place: str) -> None:
    await refused(Site(), placed(gpu(gpu=count, mem=1), place), "invalid nvidia.com/gpu value")


# --- B16: no count ---


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("default", [1, 2])
@pytest.mark.parametrize(
    "wishes",
    [
        pytest.param({"mem": 7000, "cores": 30}, id="B16-memory-and-cores"),
        pytest.param({"mem": 7000}, id="B16-memory"),
        pytest.param({"cores": 30}, id="B16-cores"),
        pytest.param({"percent": 30}, id="B16-percentage"),
        pytest.param({"cores": 0}, id="B16-zero-cores"),
    ],
)
async def test_b16_the_default_count_is_added_to_limits_and_requests(
    wishes: dict[str, Any], default: int, place: str
) -> None:
    response = await Site(NvidiaConfig(default_gpu_num=default)).create(placed(gpu("x", **wishes), place))
    assert response["allowed"], response
    body = response["pod"]
    assert body["spec"]["schedulerName"] == OWN
    containers = [*body["spec"].get("initContainers", ()), *body["spec"]["containers"]]
    resources = next(each for each in containers if each["name"] == "x")["resources"]
    assert str(resources["limits"]["nvidia.com/gpu"]) == str(resources["requests"]["nvidia.com/gpu"]) == str(default)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wishes", [{"mem": 7000}, {"cores": 30}, {"percent": 30}])
async def test_b16_without_a_default_count_such_pods_are_refused(wishes: dict[str, Any], place: str) -> None:
    await refused(
        Site(NvidiaConfig(default_gpu_num=0)), placed(gpu("x", **wishes), place), "container x", "nvidia.com/gpu"
    )


async def test_b16_only_containers_that_ask_get_a_count() -> None:
    body = pod(gpu("a"), gpu("b", mem=5), gpu("c", gpu=3, mem=5), init=(gpu("i", cores=5),))
    spec = (await Site().create(body))["pod"]["spec"]
    counts = [
        each["resources"].get("limits", {}).get("nvidia.com/gpu")
        for each in (*spec["initContainers"], *spec["containers"])
    ]
    assert counts == ["1", None, "1", 3]
    assert (await Site().create(pod(gpu(priority=1))))["pod"]["spec"].get("schedulerName") is None


async def test_b14_null_is_nothing_as_in_go() -> None:
    """A null quantity is no request, null fields are absent ones; what is wrong otherwise is refused all the same."""
    site = Site()
    empty = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": None}, "requests": None}, "env": None}
    body = pod(empty, nodeName=None, schedulerName=None, initContainers=None)
    response = await site.create(body)
    assert response["allowed"], response
    assert response["pod"] == body
    asking = {"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 5, "nvidia.com/gpu": None}}}
    assert (await site.create(pod(asking, nodeName=None)))["pod"]["spec"]["schedulerName"] == OWN
    for wrong in (pod(gpu(), nodeName=7), pod({"name": None, "env": 5}), pod(gpu(), containers=5)):
        response = await site.create(wrong)
        assert (response["allowed"], response["status"]["code"]) == (False, 400)
