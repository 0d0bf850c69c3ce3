"""Items of a list that do not fit the view, and such that only look so."""

from __future__ import annotations

import json

import msgspec

from hami.core.objects import node_decoder, pod_decoder
from hami.kube.listing import decode_items


def test_an_object_with_nulls_does_not_vanish_from_a_list() -> None:
    """A pod that a list leaves out gives its cards back."""
    pod = {"metadata": {"name": "p", "namespace": None}, "spec": {"nodeName": None}, "status": None}
    pods, problems = decode_items((msgspec.Raw(json.dumps(pod).encode()),), pod_decoder)
    assert ([each.metadata.name for each in pods], problems) == (["p"], [])
    node = {"metadata": {"name": "n", "labels": None}, "spec": {"unschedulable": None}, "status": {"allocatable": None}}
    nodes, problems = decode_items((msgspec.Raw(json.dumps(node).encode()),), node_decoder)
    assert (nodes, problems) == ([node_decoder.decode(b'{"metadata":{"name":"n"}}')], [])


def test_control_an_item_that_is_wrong_is_a_text() -> None:
    pods, problems = decode_items((msgspec.Raw(b'{"spec": 5}'), msgspec.Raw(b"{}")), pod_decoder)
    assert (len(pods), len(problems)) == (1, 1)
