"""Reports B37, B38, B40, B41, B46, B47: annotations that are broken, old, blank or odd harm only what they stand on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.site import MODEL, Site, card, gpu, pod, typed
from tests.reports.stamps import HANDSHAKE, stamp

REGISTER = "hami.io/node-nvidia-register"
GOOD = json.dumps([card("GPU-bad-0")])
BROKEN = [
    "garbage:", "GPU-a,10,abc,100,NVIDIA-X,0,true:", "GPU-a,10,100,100,NVIDIA-X,0:",
    "GPU-a,-1,100,100,NVIDIA-X,0,true:",
    "GPU-a,10,-100,100,NVIDIA-X,0,true:", "GPU-a,10,100,100,NVIDIA-X,0,maybe:", "GPU-a,99999999999,1,1,NVIDIA,0,true:",
    "GPU-a,10,100,100,NVIDIA-X,0,true,0:", ",10,100,100,NVIDIA-X,0,true:", ":", "::::", "null", "{}", "[", "[]", "[{]",
    "[1]", "[null]", '["GPU-a"]', '[{"id":""}]', '[{"count":10}]', '[{"id":"GPU-a","count":-1,"health":true}]',
    '[{"id":"GPU-a","count":"10"}]', '[{"id":"GPU;a","count":10}]', '[{"id":"GPU-a","devmem":2147483648}]',
    '[{"id":"GPU-a","devcore":-100}]', '[{"id":"GPU-a","health":"yes"}]', '[{"id":"GPU a"}]', "\x00", "�", " ",
    "[" * 3000 + "]" * 3000, '[{"id":"GPU-a","migProfiles":[{"placements":[{"start":-1,"size":1}]}]}]',
    "GPU-a,10,100,100,NVIDIA-X,0,true", "GPU-a,1e3,100,100,NVIDIA-X,0,true:", "GPU-a,10,١٠٠,100,NVIDIA-X,0,true:",
]  # fmt: skip


@pytest.mark.parametrize("text", [pytest.param(text, id=f"B37-{number}") for number, text in enumerate(BROKEN)])
async def test_b37_a_broken_register_closes_its_node_only_until_it_is_right(text: str) -> None:
    site = Site()
    site.node("bad", notes={REGISTER: text})
    site.node("good", card("GPU-good"))
    answer = await site.filter(pod(gpu(gpu=1, mem=1000)), "bad", "good")
    assert answer["NodeNames"] == ["good"]
    answer = await site.filter(pod(gpu(gpu=1, mem=1000), name="q"), "bad")
    assert "node unregistered" in answer["FailedNodes"]["bad"]
    site.node("bad", notes={REGISTER: GOOD})
    assert (await site.filter(pod(gpu(gpu=1, mem=1000), name="q"), "bad"))["NodeNames"] == ["bad"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"GPU-a,10,16384,100,{MODEL},0,true:", id="B37-seven-fields"),
        pytest.param(f"GPU-a,10,16384,100,{MODEL},0,true,3,hami-core:", id="B37-nine-fields"),
        pytest.param(f"GPU-a,10,16384,100,{MODEL},-1,1:", id="B37-no-numa-and-short-true"),
        pytest.param(f"GPU-a,10,16384,100,NVIDIA-{MODEL},0,true:", id="B37-vendor-twice"),
        pytest.param(json.dumps([card("GPU-a", unknown={"x": [1]}, devicepairscore={})]), id="B37-unknown-fields"),
        pytest.param(json.dumps([card("GPU-a"), card("GPU-a", devmem=1)]), id="B37-twice-the-same"),
        pytest.param("  " + json.dumps([card("GPU-a")]), id="B37-blanks-in-front"),
        pytest.param(json.dumps([card("GPU-a", migProfiles=None)]), id="B37-null"),
    ],
)  # fmt: skip
async def test_b37_every_form_ever_written_is_read(text: str) -> None:
    site = Site()
    site.node("n1", notes={REGISTER: text})
    assert (await site.filter(pod(gpu(gpu=1, mem=16384)), "n1"))["NodeNames"] == ["n1"]


@settings(max_examples=150, deadline=None)
@given(
    register=st.text(max_size=60), allocated=st.text(max_size=60), cordon=st.text(max_size=20), key=st.text(max_size=20)
)
async def test_b37_no_text_at_all_takes_the_good_node_down(
    register: str, allocated: str, cordon: str, key: str
) -> None:
    site = Site()
    notes = {"hami.io/device-cordon": cordon, "hami.io/node-handshake": key, "hami.io/node-nvidia-score": key}
    site.node("bad", notes={REGISTER: register, **notes})
    site.node("held", card("GPU-held"), notes=notes)
    site.running(pod(gpu(gpu=1, mem=5), name="old"), "held", allocated)
    site.node("good", card("GPU-good"))
    asking = pod(gpu(gpu=1, mem=16384), annotations={"hami.io/node-scheduler-policy": "spread"})
    assert (await site.filter(asking, "bad", "held", "good"))["NodeNames"] in (["good"], ["held"])
    assert (await site.filter(asking, "good"))["NodeNames"] == ["good"]


UNREADABLE = [
    "??", "GPU-a,NVIDIA,-5,0:;", "GPU-a,NVIDIA:;", "GPU-a,NVIDIA,x,0:;", "GPU-a,NVIDIA,5,0.5:;", "GPU-a;",
    "GPU-a,NVIDIA,99999999999,0:;", "GPU-n1,NVIDIA,5,5:;GPU-n1", "GPU-n1 ,NVIDIA,5,5:;", "[]", "null",
]  # fmt: skip


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
@pytest.mark.parametrize("text", [pytest.param(text, id=f"B38-{text}") for text in UNREADABLE])
async def test_b38_an_unreadable_allocation_closes_its_node_until_mended_or_gone(text: str, phase: str) -> None:
    for mended in (True, False):
        site = Site()
        site.node("n1")
        site.node("n2")
        old = pod(gpu(gpu=1, mem=5), name="old")
        site.running(old, "n1", text)
        body = site.pods["uid-old"]
        body["status"]["phase"] = phase
        site.world.on_pod(typed(body))
        asking = pod(gpu(gpu=1, mem=100))
        assert (await site.filter(asking, "n1", "n2"))["NodeNames"] == ["n2"]
        answer = await site.filter(pod(gpu(gpu=1, mem=100), name="q"), "n1")
        assert "takes no new shares" in answer["FailedNodes"]["n1"]
        assert "default/old" in answer["FailedNodes"]["n1"]
        assert (await site.filter(pod(gpu(), name="cpu"), "n1"))["NodeNames"] == ["n1"]
        if mended:
            site.running(old, "n1", "GPU-n1,NVIDIA,5,0:;")
        else:
            site.world.on_pod_deleted("default", "old", "uid-old")
        assert (await site.filter(pod(gpu(gpu=1, mem=100), name="q"), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("text", ["", ";", ";;;", ",,0,0:;", ",,0,0:;,,0,0:;", "GPU-gone,NVIDIA,5,5:;"])
async def test_b38_what_holds_nothing_here_closes_nothing(text: str) -> None:
    site = Site()
    site.node("n1")
    site.running(pod(gpu(gpu=1, mem=5), name="old"), "n1", text)
    assert (await site.filter(pod(gpu(gpu=1, mem=16384)), "n1"))["NodeNames"] == ["n1"]


# --- B40, B41: handshakes ---


@pytest.mark.parametrize("allocatable", [10, None])
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=f"B40-{text}") for text in
     ("Deleted_2026-01-01 00:00:00", "Deleted_2026.01.01 00:00:00", "Deleted", "Deleted_", "Deleted_never", "deleted_x",
      "Requesting", "Requesting_", "Requesting_xyz", "Requesting_2026-13-45 99:99:99", "Requesting2026", "", "xyz",
      "Reported", "Reported never", "Requesting_0000-00-00 00:00:00", "_", "Requesting_" + "9" * 500)],
)  # fmt: skip
async def test_b40_b41_values_that_say_nothing_keep_no_node_out(text: str, allocatable: int | None) -> None:
    site = Site()
    site.node("n1", allocatable=allocatable, notes={HANDSHAKE: text})
    assert (await site.filter(pod(gpu(gpu=1, mem=5)), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("zone_h", [0, 8, -5, 5.5, 5.75, -3.5, 14, -12])
@pytest.mark.parametrize("layout", ["%Y-%m-%d %H:%M:%S", "%Y.%m.%d %H:%M:%S"])
@pytest.mark.parametrize(
    ("age_s", "allocatable", "alive"),
    [
        pytest.param(0, None, True, id="B41-now"),
        pytest.param(30, None, True, id="B41-fresh"),
        pytest.param(90, None, False, id="B41-stale"),
        pytest.param(90, 10, True, id="B41-stale-but-offered"),
        pytest.param(90, 0, False, id="B41-stale-and-nothing-offered"),
        pytest.param(-600, 10, True, id="B41-ten-minutes-ahead"),
    ],
)
async def test_b41_fresh_is_fresh_and_stale_is_stale_in_every_zone(
    age_s: float, allocatable: int | None, alive: bool, zone_h: float, layout: str
) -> None:
    site = Site()
    site.node("n1", allocatable=allocatable, notes={HANDSHAKE: "Requesting_" + stamp(age_s, zone_h, layout)})
    answer = await site.filter(pod(gpu(gpu=1, mem=5)), "n1")
    assert (answer["NodeNames"] == ["n1"]) == alive, answer


@pytest.mark.parametrize("text", ["Requesting_", "Reported "])
async def test_b41_a_clock_that_runs_ahead_recovers_with_the_next_stamp(text: str) -> None:
    site = Site()
    site.node("n1", allocatable=None, notes={HANDSHAKE: text + stamp(-600)})
    site.clock.advance(1000)
    site.node("n1", allocatable=None, notes={HANDSHAKE: text + stamp(-1600)})
    site.node("n1", allocatable=None, notes={HANDSHAKE: "Reported " + stamp(-1000) + " +0000 UTC m=+5.0"})
    assert (await site.filter(pod(gpu(gpu=1, mem=5)), "n1"))["NodeNames"] == ["n1"]


# --- B46: selection ---

USE, NOUSE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"


@pytest.mark.parametrize(
    ("notes", "cards"),
    [
        pytest.param({USE: ""}, "abc", id="B46-empty"),
        pytest.param({USE: " "}, "abc", id="B46-blank"),
        pytest.param({USE: ","}, "abc", id="B46-comma"),
        pytest.param({USE: ",,\t,\n"}, "abc", id="B46-commas-and-blanks"),
        pytest.param({USE: "GPU-a,,GPU-b"}, "ab", id="B46-stray-comma"),
        pytest.param({USE: " GPU-b , "}, "b", id="B46-blanks-around"),
        pytest.param({USE: "GPU-a,GPU-a"}, "a", id="B46-twice"),
        pytest.param({USE: "GPU-b,GPU-a"}, "ab", id="B46-order"),
        pytest.param({USE: "gpu-a"}, "", id="B46-ids-are-exact"),
        pytest.param({USE: "GPU"}, "", id="B46-no-part-of-an-id"),
        pytest.param({USE: "GPU-x"}, "", id="B46-unknown"),
        pytest.param({USE: "GPU-x,GPU-c"}, "c", id="B46-unknown-and-known"),
        pytest.param({USE: "GPU-a", NOUSE: "GPU-a"}, "", id="B46-deny-wins"),
        pytest.param({USE: "GPU-a,GPU-b", NOUSE: "GPU-a"}, "b", id="B46-deny-narrows"),
        pytest.param({USE: "", NOUSE: "GPU-a"}, "bc", id="B46-deny-alone"),
        pytest.param({NOUSE: ""}, "abc", id="B46-empty-deny"),
        pytest.param({NOUSE: " , "}, "abc", id="B46-blank-deny"),
        pytest.param({NOUSE: "GPU-a,GPU-b,GPU-c"}, "", id="B46-all-denied"),
        pytest.param({NOUSE: "gpu-a"}, "abc", id="B46-deny-is-exact"),
        pytest.param({USE_TYPE: ""}, "abc", id="B46-empty-type"),
        pytest.param({USE_TYPE: "a100"}, "ab", id="B46-type-small"),
        pytest.param({USE_TYPE: "A100,"}, "ab", id="B46-type-stray-comma"),
        pytest.param({USE_TYPE: "H100 , A100"}, "abc", id="B46-two-types"),
        pytest.param({USE_TYPE: "NVIDIA"}, "abc", id="B46-vendor-as-type"),
        pytest.param({USE_TYPE: "T4"}, "", id="B46-other-type"),
        pytest.param({NOUSE_TYPE: ""}, "abc", id="B46-empty-deny-type"),
        pytest.param({NOUSE_TYPE: " ,"}, "abc", id="B46-blank-deny-type"),
        pytest.param({NOUSE_TYPE: "a100"}, "c", id="B46-deny-type"),
        pytest.param({USE_TYPE: "A100", NOUSE_TYPE: "80GB"}, "", id="B46-deny-type-wins"),
        pytest.param({USE_TYPE: "A100", USE: "GPU-c"}, "", id="B46-type-and-id"),
        pytest.param({USE_TYPE: "A100", USE: "GPU-b,GPU-c"}, "b", id="B46-type-and-ids"),
    ],
)
async def test_b46_exactly_the_cards_that_the_lists_leave(notes: dict[str, str], cards: str) -> None:
    """As many single cards as the lists leave get a pod each (all of the card), and the next one none."""
    site = Site()
    site.node("n1", card("GPU-a"), card("GPU-b", index=1), card("GPU-c", index=2, type="NVIDIA H100 80GB HBM3"))
    got = set()
    for number in range(len(cards)):
        answer = await site.filter(pod(gpu(gpu=1, mem=16384), name=f"p{number}", annotations=notes), "n1")
        assert answer["NodeNames"] == ["n1"], answer
        claim = site.world.ledger.get(f"uid-p{number}")
        assert claim is not None
        got |= {device for device, _ in claim.charges}
    assert got == {f"GPU-{each}" for each in cards}
    answer = await site.filter(pod(gpu(gpu=1, mem=16384), name="more", annotations=notes), "n1")
    assert answer["NodeNames"] is None
    mismatch = "Mismatch" in answer["FailedNodes"]["n1"]
    assert mismatch == (cards != "abc")


# --- B47: links ---


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "scores",
    [
        pytest.param({"GPU-0": {"GPU-1": 4}, "GPU-1": {"GPU-0": 0}}, id="B47-uneven"),
        pytest.param({"GPU-0": {"GPU-1": 4}}, id="B47-one-way"),
        pytest.param({f"GPU-{a}": {f"GPU-{b}": 0 for b in range(8)} for a in range(8)}, id="B47-all-zero"),
        pytest.param({f"GPU-{a}": {f"GPU-{b}": 700 for b in range(8)} for a in range(8)}, id="B47-switch"),
        pytest.param({f"GPU-{a}": {f"GPU-{b}": -5 for b in range(8)} for a in range(8)}, id="B47-negative"),
        pytest.param({"GPU-0": {"GPU-0": 99, "GPU-x": 5}, "GPU-y": {}}, id="B47-itself-and-strangers"),
        pytest.param({"GPU-0": {"GPU-1": 2**62}}, id="B47-huge"),
        pytest.param({}, id="B47-none"),
    ],
)
@pytest.mark.parametrize("numa_bind", ["", "true"])
async def test_b47_any_links_leave_a_combination(scores: dict[str, dict[str, int]], count: int, numa_bind: str) -> None:
    site = Site()
    text = json.dumps([{"uuid": uuid, "score": others} for uuid, others in scores.items()])
    cards = [card(f"GPU-{number}", index=number) for number in range(8)]
    site.node("n1", *cards, notes={"hami.io/node-nvidia-score": text})
    notes = {"hami.io/gpu-scheduler-policy": "topology-aware", "nvidia.com/numa-bind": numa_bind}
    answer = await site.filter(pod(gpu(gpu=count, mem=100), annotations=notes), "n1")
    assert answer["NodeNames"] == ["n1"]
    claim = site.world.ledger.get("uid-p")
    assert claim is not None
    assert len({device for device, _ in claim.charges}) == count
