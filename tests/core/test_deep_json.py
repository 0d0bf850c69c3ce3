"""Annotations nested too deeply to read: an error of that annotation, never one of the interpreter (report B37)."""

from collections.abc import Callable

import pytest

from hami.core.codec import decode_mig_allocations, decode_pair_scores
from hami.core.errors import DecodeError
from hami.core.register import decode_register

DEEP = '[{"id":"GPU-a","more":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}]"


@pytest.mark.parametrize(
    "decode",
    [lambda text: decode_register(text, "NVIDIA", "node n1"), lambda text: decode_pair_scores(text, "node n1"),
     lambda text: decode_mig_allocations(text, "node n1")],
)  # fmt: skip
@pytest.mark.parametrize("text", [DEEP, "[" * 5000, "[" * 5000 + "]" * 5000])
def test_b37_deeply_nested_annotations_are_decode_errors(decode: Callable[[str], object], text: str) -> None:
    with pytest.raises(DecodeError, match="node n1"):
        decode(text)
