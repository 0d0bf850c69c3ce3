"""Pieces of text that are compressed once and joined again and again, in any order, to one gzip stream.

Each piece is a run of raw deflate blocks that ends at a full flush: on a byte boundary, and nothing after it looks back
beyond it (RFC 1951; zlib, Z_FULL_FLUSH). What gzip wants of the whole besides (RFC 1952) is its length and its CRC-32,
which follow from those of the pieces: the CRC is linear, so that of each piece is moved by the number of bytes that
come after it, and all are added up.
"""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no name, no time, unknown system."""
_LAST_BLOCK: Final = b"\x03\x00"
_POLYNOMIAL: Final = 0xEDB88320
_LENGTH_BITS: Final = 40
_RAW: Final = -15
_RAW_SMALL: Final = -12
"""A window of 4 KiB: pieces are hardly longer, and nothing has to be cleared for each but that."""
_FAST: Final = 1
_SMALL_TABLES: Final = 5

Numbers = NDArray[np.uint32]


class Piece(msgspec.Struct, frozen=True, gc=False):
    """`data`: deflate blocks; `crc` and `length` of the text that they hold."""

    data: bytes
    crc: int
    length: int


class Compressor:
    """Makes pieces."""

    def __init__(self) -> None:
        _moves()  # takes 3 ms, which nobody should wait for later
        self._deflate = zlib.compressobj(_FAST, zlib.DEFLATED, _RAW_SMALL, _SMALL_TABLES)

    def piece(self, text: bytes) -> Piece:
        if not text:
            return Piece(b"", 0, 0)
        data = self._deflate.compress(text) + self._deflate.flush(zlib.Z_FULL_FLUSH)
        return Piece(data, zlib.crc32(text), len(text))


class Trailer:
    """Adds up what the end of a gzip stream says."""

    def __init__(self) -> None:
        self._crc = 0
        self._length = 0

    def add(self, piece: Piece) -> None:
        self._crc = _moved(self._crc, piece.length) ^ piece.crc
        self._length += piece.length

    def data(self) -> bytes:
        """The last block, and the sums."""
        return _LAST_BLOCK + struct.pack("<II", self._crc, self._length & 0xFFFFFFFF)


class Plain:
    """Turns the pieces of one stream back into text."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_RAW)

    def texts(self, data: bytes, most_bytes: int) -> Iterator[bytes]:
        """What the blocks hold, at most this much at once."""
        while data:
            text = self._inflate.decompress(data, most_bytes)
            data = self._inflate.unconsumed_tail
            if text:
                yield text


def joined_sums(crcs: Numbers, lengths: NDArray[np.int64]) -> tuple[int, int]:
    """CRC-32 and length of texts one after the other."""
    total = int(lengths.sum())
    after = total - lengths.cumsum()
    moved = crcs
    for bit, table in enumerate(_moves()[: total.bit_length()]):
        moved = np.where(after >> bit & 1, _move(table, moved), moved)
    return int(np.bitwise_xor.reduce(moved)), total


def _moved(crc: int, length: int) -> int:
    """One CRC after so many zero bytes."""
    for table in itertools.compress(_moves(), map(int, reversed(f"{length:b}"))):
        crc = (
            table.item(0, crc & 255)
            ^ table.item(1, crc >> 8 & 255)
            ^ table.item(2, crc >> 16 & 255)
            ^ table.item(3, crc >> 24)
        )
    return crc


@functools.cache
def _moves() -> list[Numbers]:
    """How a CRC changes when 1, 2, 4, 8, ... zero bytes follow: per byte of the CRC what each value of it becomes."""
    bytes_ = np.arange(256, dtype=np.uint32)
    low = bytes_
    for _ in range(8):
        low = low >> np.uint32(1) ^ np.where(low & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [np.stack([low, bytes_, bytes_ << np.uint32(8), bytes_ << np.uint32(16)])]
    while len(tables) < _LENGTH_BITS:
        tables.append(np.stack([_move(tables[-1], part) for part in tables[-1]]))
    return tables


def _move(table: Numbers, crcs: Numbers) -> Numbers:
    low, second, third, high = table
    result: Numbers = low[crcs & 255] ^ second[crcs >> 8 & 255] ^ third[crcs >> 16 & 255] ^ high[crcs >> 24]
    return result
