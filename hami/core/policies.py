"""The check that a pod, or a process's flags, name known policies (spec/scheduler 2.1, 4.4, 4.5)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from hami.core.device_type import Refusal
from hami.core.keys import GPU_SCHEDULER_POLICY, NODE_SCHEDULER_POLICY
from hami.core.model import Policies, Weights
from hami.core.policy_words import DEVICE_POLICIES, NODE_POLICIES
from hami.core.request import read_weights, split_words


def check_policies(annotations: Mapping[str, str]) -> Refusal | None:
    """Refuses unknown policy words, with the nearest known one, and weights that cannot be read."""
    node = annotations.get(NODE_SCHEDULER_POLICY, "").strip()
    refusal = _unknown(NODE_SCHEDULER_POLICY, (node,) if node else (), NODE_POLICIES)
    if refusal is None:
        words = split_words(annotations.get(GPU_SCHEDULER_POLICY, ""))
        refusal = _unknown(GPU_SCHEDULER_POLICY, words, DEVICE_POLICIES)
    if refusal is None:
        weights = read_weights(annotations, Weights())
        refusal = weights if isinstance(weights, Refusal) else None
    return refusal


def unknown_policy(policies: Policies) -> str:
    """What is wrong with the policies of a process's flags, with the nearest known word; empty if nothing is."""
    if policies.node not in NODE_POLICIES:
        return _described(policies.node, NODE_POLICIES)
    word = next((word for word in policies.device if word not in DEVICE_POLICIES), None)
    return "" if word is None else _described(word, DEVICE_POLICIES)


def _described(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown policy '{word}': {hint}allowed are {', '.join(known)}"


def _unknown(key: str, words: Sequence[str], known: Sequence[str]) -> Refusal | None:
    word = next((word for word in words if word not in known), None)
    return None if word is None else Refusal(f"annotation {key}: {_described(word, known)}")
