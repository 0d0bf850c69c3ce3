"""Nulls of writers that are not Go, in objects and lists of them."""

from __future__ import annotations

import json

import msgspec
import pytest

from hami.core.lenient import lenient
from hami.core.objects import Pod, pod_decoder

NULLED = {
    "metadata": {"name": "p", "namespace": None, "labels": None, "annotations": {"a": "b"}, "creationTimestamp": None},
    "spec": {"nodeName": None, "containers": [{"name": "c", "env": None, "resources": {"limits": {"cpu": None}}}]},
    "status": None,
}


def test_a_null_is_a_field_that_is_not_there() -> None:
    bare = {
        "metadata": {"name": "p", "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {}}}]},
    }
    assert lenient(pod_decoder, json.dumps(NULLED).encode()) == pod_decoder.decode(json.dumps(bare))


@pytest.mark.parametrize("text", ["", "null", "[]", '{"spec": 5}', '{"spec": {"containers": [null]}}', "[" * 100_000])
def test_control_what_is_wrong_otherwise_stays_wrong(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        lenient(pod_decoder, text.encode())


def test_what_fits_is_read_once() -> None:
    assert lenient(pod_decoder, b"{}") == Pod()
