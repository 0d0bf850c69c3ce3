"""Reports beyond the list on annotations as Go's encoder and other writers make them: nulls, and nothing at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami.core.codec import decode_mig_allocations, decode_pair_scores, decode_register
from hami.core.errors import DecodeError
from tests.reports.site import Site, card, gpu, pod

REGISTER = "hami.io/node-nvidia-register"


@pytest.mark.parametrize("text", ["null", " null\n", "[]"])
async def test_volcano_3923_a_node_that_registers_nothing_is_no_damaged_node(text: str) -> None:
    """Go writes `null` for a list that was never filled: a plugin without cards, not an annotation that is broken."""
    site = Site()
    site.node("n1", notes={REGISTER: text})
    site.node("n2")
    answer = await site.filter(pod(gpu(gpu=1, mem=1)), "n1")
    assert answer["FailedNodes"] == {"n1": "node unregistered: no cards registered"}
    assert site.world.inventory.undecodable == {}
    assert (await site.filter(pod(gpu(gpu=1, mem=1)), "n1", "n2"))["NodeNames"] == ["n2"]


@pytest.mark.parametrize("field", ["index", "type", "numa", "mode", "migProfiles"])
async def test_a_null_field_of_a_card_is_a_missing_one(field: str) -> None:
    whole: dict[str, Any] = {**card("GPU-a"), "index": 0, "numa": 0, "migProfiles": []}
    missing = {key: value for key, value in whole.items() if key != field}
    told = [decode_register(json.dumps([each]), "NVIDIA", "n1") for each in ({**whole, field: None}, missing)]
    assert told[0] == told[1]
    site = Site()
    site.node("n1", {**whole, field: None})
    assert (await site.filter(pod(gpu(gpu=1, mem=1)), "n1"))["NodeNames"] == (None if field == "type" else ["n1"])


@pytest.mark.parametrize("text", ['[{"id":null}]', "[null]", '[{"id":"GPU-a","count":"3"}]', "nul", '{"a":null}'])
def test_control_what_is_no_register_stays_none(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_register(text, "NVIDIA", "n1")


def test_null_lists_and_fields_of_the_other_annotations() -> None:
    assert decode_pair_scores("null", "n1") == {}
    assert decode_pair_scores('[{"uuid":"GPU-a","score":null}]', "n1") == {"GPU-a": {}}
    assert decode_mig_allocations("null", "p") == ()
    place = '"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"1g.5gb","placement":{"start":0,"size":1}'
    (found,) = decode_mig_allocations(f'[{{{place},"migUUID":null,"gpuInstanceID":null}}]', "p")
    assert (found.gpu_uuid, found.mig_uuid) == ("GPU-a", None)
