"""Reasons of the events that the device plugin writes, beside those of `hami.core.keys`."""

from __future__ import annotations

from typing import Final

COMPONENT: Final = "hami-device-plugin"
"""Source of the events (spec/node 3.3)."""

ALLOCATE_FAILED: Final = "AllocateFailed"
"""On the pod: kubelet's call could not be served, and what to do."""
CALL_REFUSED: Final = "AllocateRefused"
"""On the node: a call that belongs to no pod that hami placed here."""
CARDS_DIFFER: Final = "PreferredCardsNotUsed"
"""On the pod: kubelet booked other cards than the scheduler chose; the pod still gets the chosen ones."""
CARD_UNHEALTHY: Final = "CardUnhealthy"
CARD_HEALTHY: Final = "CardHealthy"
CARD_UNREADABLE: Final = "CardUnreadable"
DRIVER_UNAVAILABLE: Final = "DriverUnavailable"
NODE_CONFIG: Final = "NodeConfigNotUsed"
ANOTHER_PLUGIN: Final = "AnotherDevicePlugin"
ALLOCATABLE_DIFFERS: Final = "AllocatableDiffers"
SPLIT_COUNT_CAPPED: Final = "SplitCountCapped"
ASYMMETRIC_LINK: Final = "AsymmetricGPUP2PLink"
