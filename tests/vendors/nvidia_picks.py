"""A choice of NVIDIA cards on one node: the request, the answer as ids or as text."""

from __future__ import annotations

from hami.core.device_type import CardPick
from hami.core.model import DeviceRequest, NodeState, Policies
from hami.core.reasons import Rejection
from hami.vendors.nvidia.device import Nvidia

NVIDIA = Nvidia()


def request(count: int = 1, mem: int = 100, cores: int = 0) -> DeviceRequest:
    return DeviceRequest("NVIDIA", count, mem, 100, cores)


def pick(
    state: NodeState, asked: DeviceRequest, *words: str, annotations: dict[str, str] | None = None
) -> CardPick | Rejection:
    return NVIDIA.pick(state, asked, NVIDIA.selectors(annotations or {}), Policies("binpack", words or ("spread",)))


def ids(state: NodeState, outcome: CardPick | Rejection) -> list[str]:
    assert isinstance(outcome, CardPick), outcome
    assert [share.device_id for _, share in outcome.cards] == [state.devices[at].id for at, _ in outcome.cards]
    return [share.device_id for _, share in outcome.cards]


def text(outcome: CardPick | Rejection) -> str:
    assert isinstance(outcome, Rejection), outcome
    return outcome.text
