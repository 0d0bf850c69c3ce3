"""The vendors in force, replaceable while everything runs (`device-config.yaml` changes without a restart)."""

from __future__ import annotations

from collections.abc import Mapping

from hami.core.device_type import DeviceType, Registry


class LiveRegistry(list[DeviceType]):
    """A registry that all who hold it see replaced at once. A list, so that reading it costs hot paths nothing."""

    def count_resources(self) -> Mapping[str, str]:
        """The resource that kubelet counts, by the vendor's word."""
        return {vendor.word: vendor.count_resource for vendor in self}

    def take(self, vendors: Registry) -> None:
        """From now on these are in force. Vendors are told apart by word: the words stay the same."""
        self[:] = vendors


def live(registry: Registry) -> LiveRegistry:
    """The registry itself where it is live already, else one with these vendors."""
    return registry if isinstance(registry, LiveRegistry) else LiveRegistry(registry)
