"""Scores in float32, operation by operation (spec/scheduler 4.4, 4.5, 12)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.model import DeviceRequest, Use, Weights
from hami.core.score import device_score, float32, node_score
from tests.core.build import device

USE = Use(1, 4096, 30)
REQUEST = DeviceRequest("NVIDIA", 2, 1638, 0, 20)


@pytest.mark.parametrize(("weights", "score"), [(Weights(), 6.5), (Weights(1, 1, 3), 11.5), (Weights(0, 0, 1), 2.5)])
def test_section_12_device_scores(weights: Weights, score: float) -> None:
    assert device_score(device(), USE, weights, REQUEST) == pytest.approx(score, abs=1e-6)
    assert device_score(device(), Use(), weights, REQUEST) == 0


@pytest.mark.parametrize("missing", ["slots", "memory_mib", "core_percent"])
def test_a_card_without_one_of_its_totals_scores_zero(missing: str) -> None:
    assert device_score(device("GPU-a", **{missing: 0}), USE, Weights(), REQUEST) == 0
    assert node_score((device("GPU-a", **{missing: 0}),), (USE,)) == 0


@pytest.mark.parametrize(
    ("request_", "score"),
    [
        (REQUEST, 10 * (2 / 10 + 50 / 100 + 5734 / 16384)),
        (DeviceRequest("NVIDIA", 1, 0, 50, 20), 10 * (2 / 10 + 50 / 100 + 12288 / 16384)),
        (DeviceRequest("NVIDIA", 1, 1638, 50, 20), 10 * (2 / 10 + 50 / 100 + 12288 / 16384)),
    ],
)
def test_the_request_counts_on_cards_named_by_the_vendors_word(request_: DeviceRequest, score: float) -> None:
    assert device_score(device(type="NVIDIA"), USE, Weights(), request_) == pytest.approx(score, abs=1e-5)


def test_an_empty_node_scores_zero() -> None:
    assert node_score((), ()) == 0


@settings(max_examples=100)
@given(st.integers(0, 2**31), st.integers(1, 2**31), st.integers(0, 300), st.integers(0, 20))
def test_scores_equal_float32_arithmetic(memory: int, total: int, cores: int, slots: int) -> None:
    ratios = [np.float32(slots) / np.float32(10), np.float32(cores) / np.float32(100)]
    ratios.append(np.float32(memory) / np.float32(total))
    expected = np.float32(10) * (ratios[0] + ratios[1] + ratios[2])
    use = Use(slots, memory, cores)
    assert device_score(device(memory_mib=total), use, Weights(), REQUEST) == float(expected)
    assert float32(0.1) == float(np.float32(0.1))
