"""The evaluator's mode that never stops early: every request of a pod against every card of one node.

The outcome is `core.fit.evaluate`'s own; the reports beside it say, card by card, what was required and what there is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.core.device_type import CardReports, Check, DeviceType, Registry
from hami.core.fit import ORDER, Fit, Placing, QuotaRoom, evaluate
from hami.core.model import ContainerKind, ContainerShares, DeviceRequest, NodeState, PodRequest
from hami.core.quota import Room
from hami.core.reasons import Reason, Rejection

__all__ = ["NodeReport", "RequestReport", "explain"]


class RequestReport(msgspec.Struct, frozen=True):
    """One request of one container, on the node as it is when the containers before it have their cards."""

    container: int
    """Index over the pod's containers, init containers first."""
    request: DeviceRequest
    rejection: Rejection | None
    shares: ContainerShares
    """The cards that it got; empty if it was rejected."""
    reports: CardReports


class NodeReport(msgspec.Struct, frozen=True):
    """Everything about one node. A pod whose requests all pass may still fail: MIG slices that overlap in time."""

    name: str
    outcome: Fit | Rejection
    requests: tuple[RequestReport, ...]


def explain(state: NodeState, request: PodRequest, registry: Registry, quota: QuotaRoom | None = None) -> NodeReport:
    """Evaluates like `evaluate` and goes on after a rejection, as if that request held nothing."""
    vendors = {vendor.word: vendor for vendor in registry}
    left = quota if isinstance(quota, Room) else None
    walk = _Walk(request, vendors, Placing(request, vendors, quota), left)
    now = state
    for kind in ORDER:
        before = now
        for index, container in enumerate(request.containers):
            if container.kind is kind:
                after = walk.container(now, index)
                now = before if kind is ContainerKind.INIT else after
    return NodeReport(state.name, evaluate(state, request, registry, quota), tuple(walk.found))


class _Walk:
    def __init__(
        self, request: PodRequest, vendors: Mapping[str, DeviceType], placing: Placing, left: Room | None
    ) -> None:
        self.found: list[RequestReport] = []
        self._request = request
        self._vendors = vendors
        self._placing = placing
        self._left = left

    def container(self, state: NodeState, index: int) -> NodeState:
        """Reports every request of the container; returns the state with what it got."""
        for asked in self._request.containers[index].devices:
            vendor = self._vendors.get(asked.vendor)
            reports = self._reports(vendor, state, index, asked) if vendor is not None else CardReports(())
            after = self._placing.place_request(state, index, asked)
            if isinstance(after, Rejection):
                self.found.append(RequestReport(index, asked, after, (), reports))
            else:
                shares = self._placing.shares(asked.vendor, index)
                self.found.append(RequestReport(index, asked, None, shares, reports))
                state = after
        return state

    def _reports(self, vendor: DeviceType, state: NodeState, index: int, asked: DeviceRequest) -> CardReports:
        selectors = self._request.selectors_of(vendor.word)
        check = self._placing.quota_check(vendor, index)
        reports = vendor.explain(state, asked, selectors, self._request.policies, check)
        return reports if self._left is None else _with_room(reports, self._left.text(vendor.word))


def _with_room(reports: CardReports, left: str) -> CardReports:
    """The reports with the numbers of the quota: a vendor only knows whether there is room."""

    def told(check: Check) -> Check:
        by_quota = check.reason is Reason.RESOURCE_QUOTA_NOT_FIT
        return msgspec.structs.replace(check, available=left) if by_quota else check

    cards = (msgspec.structs.replace(card, checks=tuple(map(told, card.checks))) for card in reports.cards)
    return msgspec.structs.replace(reports, cards=tuple(cards))
