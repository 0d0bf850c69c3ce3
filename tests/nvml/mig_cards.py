"""Two cards that can do MIG, with every kind of profile, and one that cannot: a hardware profile for tests."""

from __future__ import annotations

MIG_CARDS = """
cards:
  - model: NVIDIA A100-SXM4-40GB
    count: 2
    memory_mib: 40960
    mig_profiles: &profiles
      - {slices: 1, memory_mib: 4864, slice_count: 1, multiprocessors: 14,
         placements: [[0, 1], [1, 1], [2, 1], [3, 1], [4, 1], [5, 1], [6, 1]]}
      - {slices: 2, memory_mib: 9984, slice_count: 2, multiprocessors: 28, placements: [[0, 2], [2, 2], [4, 2]]}
      - {slices: 3, memory_mib: 20096, slice_count: 3, multiprocessors: 42, placements: [[0, 4], [4, 4]]}
      - {slices: 7, memory_mib: 40448, slice_count: 7, multiprocessors: 98, placements: [[0, 8]]}
      - {slices: 1, memory_mib: 9984, slice_count: 1, multiprocessors: 14, placements: [[0, 2], [2, 2], [4, 2], [6, 2]]}
      - {slices: 1, media: true, memory_mib: 4864, slice_count: 1, multiprocessors: 14, placements: [[0, 1]]}
  - {model: Tesla T4, memory_mib: 15360}
"""
