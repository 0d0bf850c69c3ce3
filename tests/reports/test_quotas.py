"""Reports B17, B19, B20: quotas of namespaces, at admission and in filter."""

from __future__ import annotations

import pytest

from tests.reports.site import SIDECAR, Object, Site, card, gpu, pod, refused

MEM, CORES = "limits_nvidia_com__gpumem", "limits_nvidia_com__gpucores"


@pytest.mark.parametrize(
    ("hard", "body", "words"),
    [
        pytest.param(
            {MEM: "2000"},
            pod(gpu("a", gpu=1, mem=1024), gpu("b", gpu=1, mem=1024)),
            "requested 2048 MiB, limit 2000",
            id="B17-two-containers",
        ),
        pytest.param({MEM: "4096"}, pod(gpu(gpu=2, mem=2500)), "requested 5000 MiB, limit 4096", id="B17-two-cards"),
        pytest.param(
            {MEM: "9999"},
            pod(gpu("a", gpu=2, mem=2500), gpu("b", gpu=2, mem=2500)),
            "requested 10000 MiB",
            id="B17-cards-and-containers",
        ),
        pytest.param(
            {MEM: "999"}, pod(gpu("a"), init=(gpu("i", gpu=1, mem=1000),)), "requested 1000 MiB", id="B17-init"
        ),
        pytest.param(
            {MEM: "1999"},
            pod(gpu("a", gpu=1, mem=1000), init=({**gpu("s", gpu=1, mem=1000), **SIDECAR},)),
            "requested 2000 MiB",
            id="B17-sidecar",
        ),
        pytest.param({MEM: "999"}, pod(gpu("a", mem=1000)), "requested 1000 MiB", id="B17-no-count"),
        pytest.param(
            {MEM: "999"}, pod(gpu("a", kind="requests", gpu=1, mem=1000)), "requested 1000 MiB", id="B17-requests"
        ),
        pytest.param({CORES: "50"}, pod(gpu(gpu=2, mem=1, cores=30)), "requested 60 %, limit 50 %", id="B17-cores"),
        pytest.param({CORES: "99"}, pod(gpu(gpu=1)), "requested 100 %", id="B17-exclusive-by-default"),
        pytest.param({MEM: "2k"}, pod(gpu(gpu=1, mem="3k")), "limit 2000 MiB", id="B17-suffixes"),
        pytest.param({MEM: "0"}, pod(gpu(gpu=1, mem=1)), "limit 0 MiB", id="B20-zero-memory"),
        pytest.param({CORES: "0"}, pod(gpu(gpu=1, mem=1, cores=1)), "limit 0 %", id="B20-zero-cores"),
        pytest.param(
            {"limits_nvidia_com__gpu": "0"}, pod(gpu(gpu=1)), "requested 1 cards, limit 0 cards", id="B20-zero-count"
        ),
        pytest.param(
            {"limits_nvidia_com__gpu": "0"}, pod(gpu(mem=5)), "limit 0 cards", id="B20-zero-count-added-count"
        ),
        pytest.param({"requests_nvidia_com__gpu": "0"}, pod(gpu(gpu=1)), "limit 0 cards", id="B20-zero-requests"),
        pytest.param(
            {"limits_nvidia_com__gpu": "1"}, pod(gpu(gpu=2, mem=1)), "requested 2 cards", id="B20-count-of-two"
        ),
        pytest.param(
            {"limits_nvidia_com__gpu": "1"},
            pod(gpu("a", gpu=1, mem=1), gpu("b", gpu=1, mem=1)),
            "requested 2 cards",
            id="B20-two-containers",
        ),
    ],
)
async def test_b17_b20_quotas_refuse_with_used_requested_and_limit(
    hard: dict[str, str], body: Object, words: str
) -> None:
    site = Site()
    site.node("n1", *(card(f"GPU-{at}", devmem=81920) for at in range(4)))
    admitted = (await site.create(body))["pod"]
    site.quota("team", **hard)
    await refused(site, body, "exceeding resource quota team", "used 0", words)
    answer = await site.filter(admitted, "n1")
    assert "ResourceQuotaNotFit" in answer["FailedNodes"]["n1"]
    site.world.quotas.remove("default", "team")
    assert (await site.filter(admitted, "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    ("hard", "body"),
    [
        pytest.param({MEM: "2048"}, pod(gpu("a", gpu=1, mem=1024), gpu("b", gpu=1, mem=1024)), id="B17-just-enough"),
        pytest.param(
            {MEM: "1000"}, pod(gpu("a", gpu=1, mem=1000), init=(gpu("i", gpu=1, mem=1000),)), id="B17-init-beside-app"
        ),
        pytest.param({MEM: "0"}, pod(gpu()), id="B20-zero-and-no-devices"),
        pytest.param({MEM: "0"}, pod(gpu(gpu=0)), id="B20-zero-and-none-asked"),
        pytest.param({"limits_nvidia_com__gpu": "0"}, pod(gpu(gpu=0)), id="B20-zero-count-and-none-asked"),
        pytest.param({"limits_nvidia_com__gpu": "2"}, pod(gpu(gpu=2, mem=1)), id="B20-count-just-enough"),
        pytest.param({"pods": "0"}, pod(gpu(gpu=1, mem=1)), id="B20-keys-of-others"),
    ],
)
async def test_b17_b20_what_fits_is_admitted(hard: dict[str, str], body: Object) -> None:
    site = Site()
    site.quota(**hard)
    assert (await site.create(body))["allowed"]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(gpu(gpu=1), id="B19-unset"),
        pytest.param(gpu(gpu=1, percent=100), id="B19-all"),
        pytest.param(gpu(gpu=1, percent=50), id="B19-half"),
        pytest.param(gpu(gpu=1, cores=10), id="B19-cores-only"),
        pytest.param(gpu(gpu=1, mem=0), id="B19-zero"),
    ],
)
async def test_b19_memory_without_a_number_counts_once_the_card_is_known(first: Object) -> None:
    site = Site()
    site.node("n1", {"id": "GPU-a", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA L40", "health": True})
    site.quota(**{MEM: "10000"})
    assert (await site.create(pod(first)))["allowed"]
    answer = await site.filter(pod(first), "n1")
    assert answer["FailedNodes"] == {"n1": "1/1 ResourceQuotaNotFit"}
    assert any("exceeding resource quota q" in text and "limit 10000 MiB" in text for text in site.told)
    second = pod(gpu(gpu=1, mem=1000), name="second")
    assert (await site.create(second))["allowed"]
    assert (await site.filter(second, "n1"))["NodeNames"] == ["n1"]


async def test_b19_charge_and_check_are_the_same_number() -> None:
    site = Site()
    site.node("n1", {"id": "GPU-a", "count": 10, "devmem": 1001, "devcore": 100, "type": "NVIDIA X", "health": True})
    site.quota(**{MEM: "999"})
    for number, fits in enumerate((True, True, False)):
        body = pod(gpu(gpu=1, percent=33), name=f"p{number}")
        # A third of 1001 is 330: three of them are 990 and fit, as they are charged.
        assert ((await site.filter(body, "n1"))["NodeNames"] == ["n1"]) == (fits or number == 2)
    assert site.world.ledger.namespaces.of("default")["NVIDIA"].memory_mib == 990
    assert (await site.filter(pod(gpu(gpu=1, percent=1), name="more"), "n1"))["FailedNodes"]


async def test_b20_updates_leave_no_moment_without_the_limit() -> None:
    site = Site()
    site.node("n1")
    for number in range(100):
        site.quota(**{MEM: "0"})
        site.quota("other", **{MEM: str(number)})
        assert not (await site.create(pod(gpu(gpu=1, mem=1))))["allowed"]
        assert (await site.filter(pod(gpu(gpu=1, mem=1), name=f"p{number}"), "n1"))["NodeNames"] is None
    site.world.quotas.remove("default", "other")
    assert not (await site.create(pod(gpu(gpu=1, mem=1))))["allowed"]
    site.world.quotas.remove("default", "q")
    assert (await site.create(pod(gpu(gpu=1, mem=1))))["allowed"]


async def test_b20_a_count_quota_counts_what_runs_and_what_is_reserved() -> None:
    site = Site()
    site.node("n1")
    site.quota(limits_nvidia_com__gpu="3", requests_nvidia_com__gpu="2")
    site.running(pod(gpu(gpu=1, mem=1), name="old"), "n1", "GPU-n1,NVIDIA,1,0:;")
    assert (await site.filter(pod(gpu(gpu=1, mem=1), name="a"), "n1"))["NodeNames"] == ["n1"]
    answer = await site.filter(pod(gpu(gpu=1, mem=1), name="b"), "n1")
    assert answer["FailedNodes"] == {"n1": "1/1 ResourceQuotaNotFit"}
    assert any("nvidia.com/gpu used 2 cards, requested 1 cards, limit 2 cards" in text for text in site.told)
    await refused(site, pod(gpu(gpu=1, mem=1), name="b"), "used 2 cards")
    site.world.on_pod_deleted("default", "old", "uid-old")
    assert (await site.filter(pod(gpu(gpu=1, mem=1), name="b"), "n1"))["NodeNames"] == ["n1"]
