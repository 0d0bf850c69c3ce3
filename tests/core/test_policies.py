"""Policy words of a process's flags and of pods (spec/scheduler 4.4, 4.5)."""

import pytest

from hami.core.model import Policies
from hami.core.policies import check_policies, unknown_policy
from hami.core.policy_words import DEVICE_POLICIES, NODE_POLICIES


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        (Policies("spred"), "unknown policy 'spred': did you mean spread? allowed are binpack, spread"),
        (
            Policies("spread", ("numa", "topology")),
            "unknown policy 'topology': did you mean topology-aware? "
            "allowed are binpack, mutex, numa, spread, topology-aware",
        ),
        (Policies("binpack", ("zzz",)), f"unknown policy 'zzz': allowed are {', '.join(DEVICE_POLICIES)}"),
        *((Policies(node, (device, "numa")), "") for node in NODE_POLICIES for device in DEVICE_POLICIES),
    ],
)  # fmt: skip
def test_flags_name_known_policies(policies: Policies, problem: str) -> None:
    assert unknown_policy(policies) == problem


@pytest.mark.parametrize("words", ["", " ", ",", "binpack", "numa, binpack ,mutex"])
def test_known_words_of_pods_pass(words: str) -> None:
    assert check_policies({"hami.io/gpu-scheduler-policy": words, "hami.io/node-scheduler-policy": ""}) is None
