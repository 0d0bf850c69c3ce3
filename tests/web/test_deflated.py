"""Pieces that are compressed once make one valid gzip stream in any order."""

from __future__ import annotations

import gzip
import zlib
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.web.deflated import GZIP_HEAD, Compressor, Plain, Trailer, joined_sums

REPEATED = st.builds(lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 999))
TEXTS = st.lists(st.one_of(st.binary(max_size=50), REPEATED))


@given(TEXTS, st.randoms(use_true_random=False), st.integers(1, 2000))
def test_pieces_join_in_any_order(texts: list[bytes], random: Random, most_bytes: int) -> None:
    compressor = Compressor()
    pieces = [(text, compressor.piece(text)) for text in texts]
    random.shuffle(pieces)
    whole = b"".join(text for text, _ in pieces)
    trailer, inflate = Trailer(), Plain()
    shown: list[bytes] = []
    for _, piece in pieces:
        trailer.add(piece)
        shown += inflate.texts(piece.data, most_bytes)
    assert gzip.decompress(GZIP_HEAD + b"".join(piece.data for _, piece in pieces) + trailer.data()) == whole
    assert b"".join(shown) == whole
    assert max(map(len, shown), default=0) <= most_bytes


@given(st.lists(st.binary(max_size=300)))
def test_sums_of_texts_one_after_the_other(texts: list[bytes]) -> None:
    crcs = np.array([zlib.crc32(text) for text in texts], np.uint32)
    whole = b"".join(texts)
    assert joined_sums(crcs, np.array([len(text) for text in texts], np.int64)) == (zlib.crc32(whole), len(whole))


def test_a_wrong_sum_is_seen() -> None:
    """The control: what reads the stream does look at the sums."""
    piece, other = Compressor().piece(b"some text"), Compressor().piece(b"some tent")
    trailer = Trailer()
    trailer.add(other)
    stream = GZIP_HEAD + piece.data + trailer.data()
    with pytest.raises(gzip.BadGzipFile, match="CRC"):
        gzip.decompress(stream)


def test_text_of_five_gigabytes_has_its_length_modulo_four() -> None:
    piece = Compressor().piece(b"\0" * 1024 * 1024)
    trailer, crc = Trailer(), 0
    for _ in range(5 * 1024):
        trailer.add(piece)
    for _ in range(64):
        crc = zlib.crc32(b"\0" * 1024 * 1024 * 4, crc)
    short = Trailer()
    for _ in range(256):
        short.add(piece)
    assert short.data()[-8:-4] == crc.to_bytes(4, "little")
    assert int.from_bytes(trailer.data()[-4:], "little") == 1024 * 1024 * 1024
