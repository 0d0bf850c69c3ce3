"""Reports B13, B14: random quantities against a reader of Kubernetes quantities made of Decimal alone."""

from __future__ import annotations

import re
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.site import Site, card, gpu, pod

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
INT32_MAX = 2**31 - 1

quantities = st.from_regex(
    r"[+-]?[0-9]{0,7}(\.[0-9]{0,3})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-5]?[0-9]|)", fullmatch=True
)
odd_texts = st.text(alphabet="0123456789.+-eEkKmMGi ,_x%", max_size=8)


def value_of(text: str) -> Decimal | None:
    """What Kubernetes reads; None for a text that is no quantity."""
    found = re.fullmatch(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([A-Za-z]*|[eE][+-]?[0-9]+)", text, re.ASCII)
    if found is None:
        return None
    number, suffix = Decimal(found[1]), found[2]
    if suffix in BINARY:
        return number * Decimal(2 ** (10 * BINARY[suffix]))
    if suffix in DECIMAL:
        return number.scaleb(DECIMAL[suffix])
    return number.scaleb(int(suffix[1:])) if re.fullmatch(r"[eE][+-]?[0-9]+", suffix) else None


def meant_in_bytes(text: str, value: Decimal) -> bool:
    """Sizes that nobody can mean in MiB: with a binary suffix, or with a decimal one above 16 TiB."""
    suffix = text.lstrip("+-0123456789.")
    if suffix in BINARY:
        return value > 0
    return bool(suffix) and suffix in DECIMAL and value > 16 * 2**20


@settings(max_examples=250, deadline=None)
@given(quantities | odd_texts)
async def test_b13_b14_what_is_admitted_is_what_kubernetes_reads_and_what_is_allocated(text: str) -> None:
    value = value_of(text)
    whole = value is not None and value == value.to_integral_value() and 0 <= value <= INT32_MAX
    expected = whole and value is not None and not meant_in_bytes(text, value)
    site = Site()
    site.node("n1", card("GPU-n1", devmem=INT32_MAX))
    response = await site.create(pod(gpu(gpu=1, mem=text)))
    assert response["allowed"] == expected, (text, value, response["status"])
    answer = await site.filter(pod(gpu(gpu=1, mem=text)), "n1")
    assert (answer["NodeNames"] == ["n1"]) == expected
    if expected and value:
        claim = site.world.ledger.get("uid-p")
        assert claim is not None
        assert [use.memory_mib for _, use in claim.charges] == [int(value)]
