"""Reports beyond the list on odd but legal amounts: of no card, of many slices, and in quotas with a suffix."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.topology import best_linked
from tests.reports.site import Object, Site, card, gpu, placed, pod


@pytest.mark.parametrize(
    ("wishes", "named"),
    [
        ({"mem": 1000}, "nvidia.com/gpumem"),
        ({"mem": "0", "cores": 10}, "nvidia.com/gpucores"),
        ({"percent": 50}, "nvidia.com/gpumem-percentage"),
        ({"mem": 0, "cores": "0", "percent": 0}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("place", ["app", "init", "requests"])
async def test_gpu_manager_28_an_amount_for_no_card_is_told(wishes: Object, named: str, place: str) -> None:
    """`Insufficient nvidia.com/gpumem` for ever: no node offers the amount, and a count of 0 asks for nothing (B22)."""
    site = Site()
    response = await site.create(placed(gpu(gpu=0, **wishes), place))
    assert response["allowed"]
    warnings = response.get("warnings", [])
    assert [named in warning and "nvidia.com/gpu is 0" in warning for warning in warnings] == [True] * bool(named)


async def test_control_an_amount_for_a_card_needs_no_warning() -> None:
    assert "warnings" not in await Site().create(pod(gpu(gpu=1, mem=1000)))


@pytest.mark.parametrize("seed", range(20))
def test_hami_2750_slices_of_one_card_are_looked_at_once(seed: int) -> None:
    """8 cards of 7 slices are 56 candidates and 8 cards: as good a choice as if each slice were tried for itself."""
    chance = random.Random(seed)
    names = [f"GPU-{number}" for number in range(chance.randint(2, 8))]
    slices = [name for name in names for _ in range(7)]
    scores: dict[str, dict[str, int]] = {name: {} for name in names}
    for left, right in combinations(names, 2):
        scores[left][right] = scores[right][left] = chance.choice([0, 0, 10, 20, 50])
    count = chance.randint(4, len(slices) - 1)
    apart = [f"{name}/{number}" for number, name in enumerate(slices)]
    known = {one: {other: scores[one.split("/")[0]].get(other.split("/")[0], 0) for other in apart} for one in apart}

    def worth(chosen: tuple[int, ...]) -> int:
        return sum(scores[slices[one]].get(slices[other], 0) for one, other in combinations(chosen, 2))

    assert worth(best_linked(slices, count, scores)) == worth(best_linked(apart, count, known))


async def test_hami_2750_a_pod_of_many_slices_is_placed() -> None:
    profile = {"name": "1g.5gb", "memoryMB": 4864, "core": 14, "sliceCount": 1}
    profile["placements"] = [{"start": start, "size": 1} for start in range(7)]
    site = Site()
    fields: Object = {"count": 7, "devmem": 40960, "mode": "mig", "migProfiles": [profile]}
    site.node("n1", *(card(f"GPU-{number}", index=number, **fields) for number in range(8)))
    body = pod(gpu(gpu=40, mem=4000), annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
    assert (await site.filter(body, "n1"))["NodeNames"] == ["n1"]
    site.world.settle_now()
    assert sum(use.slots for use in site.world.ledger.uses("n1").values()) == 40


@pytest.mark.parametrize(
    ("written", "limit_mib"),
    [
        ("10Gi", 10240),
        ("10240Mi", 10240),
        ("0.5Gi", 512),
        ("1Ti", 1048576),
        ("10G", 9536),
        ("-1Gi", -1024),
        ("1Mi", 1),
        ("10k", 10000),
        ("10Ki", 10240),
        ("1e3", 1000),
        ("3M", 3000000),
        ("10240", 10240),
    ],
)
@pytest.mark.parametrize("factor", [1, 1024])
async def test_b13_a_quota_on_memory_with_a_suffix_limits_what_it_says(
    written: str, limit_mib: int, factor: int
) -> None:
    """`10Gi` as 10737418240 MiB would be a limit that nobody ever meets. A plain number counts the resource's units."""
    site = Site(NvidiaConfig(memory_factor=factor))
    site.quota(limits_nvidia_com__gpumem=written)
    ((_, (limits,)),) = site.world.quotas.limits()
    is_size = written.endswith(("i", "G")) and written != "10Ki"
    assert limits.memory is not None
    assert limits.memory.value == limit_mib * (1 if is_size else factor)


async def test_b13_a_pod_above_a_quota_written_as_a_size_is_refused_with_the_numbers() -> None:
    site = Site()
    site.node("n1", card("GPU-a", devmem=81920))
    site.quota(limits_nvidia_com__gpumem="10Gi")
    message = (await site.create(pod(gpu(gpu=1, mem=10241))))["status"]["message"]
    assert "requested 10241 MiB, limit 10240 MiB" in message
    assert (await site.create(pod(gpu(gpu=1, mem=10240))))["allowed"]
    assert (await site.filter(pod(gpu(gpu=1, percent=20)), "n1"))["NodeNames"] is None
    assert (await site.filter(pod(gpu(gpu=1, percent=12)), "n1"))["NodeNames"] == ["n1"]
