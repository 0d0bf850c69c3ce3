"""What a container with MIG devices gets: their ids, their nodes, their CDI names; no limits, the card keeps those.

Static and dynamic instances alike (spec/node 2.9, trap T-32).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hami.core.container_edits import ContainerEdits, DeviceNode
from hami.deviceplugin.cdi_files import CdiFiles
from hami.deviceplugin.host_devices import card_node, control_nodes, device_node
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts, MigComputeFacts, MigInstanceFacts
from hami.vendors.nvidia.cdi import CdiClass, CdiDevice
from hami.vendors.nvidia.edits import DeviceListStrategy, EditContext, container_edits
from hami.vendors.nvidia.names import MODE_MIG

_MINOR_LINE: Final = re.compile(r"gpu([0-9]+)/gi([0-9]+)(?:/ci([0-9]+))?/access ([0-9]+)", re.ASCII)

_Access = tuple[int, int, int | None]
"""Minor number of a card's node, GPU instance, and compute instance or None for the GPU instance itself."""


class MigDevice(NamedTuple):
    """One MIG device: what a container can be given."""

    card: CardFacts
    instance: MigInstanceFacts
    compute: MigComputeFacts

    @property
    def position(self) -> str:
        """`<card>:<position>`, as NVIDIA's tools name it."""
        return f"{self.card.index}:{self.compute.index}"


class MigSetup:
    """Blocking: for a thread."""

    def __init__(self, settings: PluginSettings, cdi: CdiFiles) -> None:
        self._settings = settings
        self._cdi = cdi

    def edits(
        self, devices: Sequence[MigDevice], cards: Sequence[CardFacts], ids: Sequence[str] = ()
    ) -> ContainerEdits:
        """Edits for a container with `devices`, under `ids` instead of their UUIDs where given. Raises OSError.

        `cards` are all of the node: CDI files describe them.
        """
        settings = self._settings
        minors = read_minors(settings.mig_minors)
        nodes = [node for device in devices for node in _nodes(settings.dev_root, *device, minors)]
        context = EditContext(
            hook_path=str(settings.hook_path),
            lock_dir=str(settings.lock_dir),
            container_dir="",
            cache_name=str(uuid.uuid4()),
            mode=MODE_MIG,
            device_list_strategies=tuple(DeviceListStrategy(each) for each in settings.device_list_strategies),
            visible_ids=tuple(ids) or tuple(device.compute.uuid for device in devices),
            feature_envs=settings.feature_envs,
            cdi_features=self.describe(cards),
            cdi_annotation_prefix=settings.cdi_annotation_prefix,
            pass_device_specs=settings.pass_device_specs,
            device_nodes=tuple(dict.fromkeys([*control_nodes(settings.dev_root), *nodes])),
        )
        return container_edits((), context, settings.nvidia)

    def describe(self, cards: Sequence[CardFacts]) -> tuple[CdiClass, ...]:
        """Writes the CDI specifications of cards and their MIG devices, where names of theirs are handed out.

        The features that every container gets beside them. Raises OSError.
        """
        return self._cdi.ensure(cards, mig_devices(self._settings, cards))


def mig_devices(settings: PluginSettings, cards: Sequence[CardFacts]) -> tuple[CdiDevice, ...]:
    """The MIG devices of `cards` for a CDI specification, by UUID and by `<card>:<position>`."""
    if not any(card.mig_instances for card in cards):
        return ()
    minors = read_minors(settings.mig_minors)
    return tuple(
        CdiDevice(
            (device.compute.uuid, device.position),
            tuple(_nodes(settings.dev_root, *device, minors)),
        )
        for device in devices_of(cards)
    )


def devices_of(cards: Iterable[CardFacts]) -> tuple[MigDevice, ...]:
    """The MIG devices that exist, in order of cards and instances; half made instances are none."""
    return tuple(
        MigDevice(card, instance, compute)
        for card in cards
        for instance in card.mig_instances
        for compute in instance.compute
        if compute.uuid
    )


def read_minors(path: Path) -> dict[_Access, int]:
    """Minor numbers of the nodes that open instances, as the driver lists them; none where it does not."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[_Access, int] = {}
    for line in lines:
        match = _MINOR_LINE.fullmatch(line.strip())
        if match is not None:
            card, instance, compute, minor = match.groups()
            found[(int(card), int(instance), None if compute is None else int(compute))] = int(minor)
    return found


def _nodes(
    dev_root: Path,
    card: CardFacts,
    instance: MigInstanceFacts,
    compute: MigComputeFacts,
    minors: Mapping[_Access, int],
) -> Iterable[DeviceNode]:
    """The card's node, and those that open the GPU instance and the compute instance."""
    yield card_node(dev_root, card)
    for access in ((card.minor, instance.id, None), (card.minor, instance.id, compute.id)):
        if access in minors:
            yield device_node(dev_root, dev_root / "dev" / "nvidia-caps" / f"nvidia-cap{minors[access]}")
