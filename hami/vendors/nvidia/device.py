"""NVIDIA as a DeviceType: the names of its keys and the way to its rules."""

from __future__ import annotations

from collections.abc import Mapping

from hami.core.codec import decode_pair_scores, decode_register, parse_bool
from hami.core.device_type import (
    SHARED_TOKEN,
    CardPick,
    CardReports,
    ContainerChange,
    NodeLock,
    QuotaNames,
    Refusal,
    ShareCheck,
)
from hami.core.model import Device, DeviceRequest, DeviceShare, NodeState, Policies, Selectors, Use
from hami.core.objects import Container
from hami.core.reasons import Rejection
from hami.core.request import split_words
from hami.vendors.nvidia import admission, names
from hami.vendors.nvidia.cards import pick_cards
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.explain import explain_cards
from hami.vendors.nvidia.requests import read_request


class Nvidia:
    """NVIDIA's rules under one configuration. Implements `hami.core.device_type.DeviceType`."""

    word = names.WORD
    register_key = names.REGISTER_KEY
    handshake_key = names.HANDSHAKE_KEY
    score_key = names.SCORE_KEY
    to_allocate_key = names.TO_ALLOCATE_KEY
    allocated_key = names.ALLOCATED_KEY
    node_lock: NodeLock | None = SHARED_TOKEN

    def __init__(self, config: NvidiaConfig | None = None) -> None:
        self.config = config or NvidiaConfig()

    @property
    def count_resource(self) -> str:
        return self.config.resource_count_name

    @property
    def managed_resources(self) -> tuple[str, ...]:
        """Count, memory, percentage, cores, priority."""
        return self.config.resource_names

    @property
    def quota_names(self) -> QuotaNames:
        """Memory, cores and the count of cards (spec/scheduler 3.4, report B20)."""
        config = self.config
        return QuotaNames(
            config.resource_memory_name, config.resource_core_name, config.memory_factor, config.resource_count_name
        )

    def decode_register(self, text: str, subject: str) -> tuple[Device, ...]:
        """Cards of a register annotation of any release. Raises DecodeError."""
        return decode_register(text, self.word, subject)

    def decode_pair_scores(self, text: str, subject: str) -> dict[str, dict[str, int]]:
        """Pair scores of a score annotation. Raises DecodeError."""
        return decode_pair_scores(text, subject)

    def admit(self, container: Container) -> ContainerChange | Refusal:
        """See `hami.vendors.nvidia.admission.admit`."""
        return admission.admit(container, self.config)

    def hiding_env(self, container: Container, *, foreign: bool) -> tuple[tuple[str, str], ...]:
        """See `hami.vendors.nvidia.admission.hiding_env`."""
        return admission.hiding_env(container, self.config, foreign=foreign)

    def check_env(self, container: Container, *, allow_disable_control: bool) -> Refusal | None:
        """See `hami.vendors.nvidia.admission.check_env`."""
        return admission.check_env(container, allow_disable_control=allow_disable_control)

    def check_annotations(self, annotations: Mapping[str, str]) -> Refusal | None:
        """See `hami.vendors.nvidia.admission.check_annotations`."""
        return admission.check_annotations(annotations)

    def request(self, container: Container) -> DeviceRequest | Refusal | None:
        """See `hami.vendors.nvidia.requests.read_request`."""
        return read_request(container, self.config)

    def selectors(self, annotations: Mapping[str, str]) -> Selectors:
        """The pod's selection annotations; type words in lower case, a NUMA flag that is no boolean is false."""
        return Selectors(
            use_types=split_words(annotations.get(names.USE_TYPE, "").lower()),
            nouse_types=split_words(annotations.get(names.NOUSE_TYPE, "").lower()),
            use_ids=split_words(annotations.get(names.USE_UUID, "")),
            nouse_ids=split_words(annotations.get(names.NOUSE_UUID, "")),
            numa_bind=bool(parse_bool(annotations.get(names.NUMA_BIND, "").strip())),
            modes=annotations.get(names.VGPU_MODE, "").strip(),
        )

    def pick(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None = None,
    ) -> CardPick | Rejection:
        """See `hami.vendors.nvidia.cards.pick_cards`."""
        return pick_cards(state, request, selectors, policies, quota)

    def explain(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None = None,
    ) -> CardReports:
        """See `hami.vendors.nvidia.explain.explain_cards`."""
        return explain_cards(state, request, selectors, policies, quota)

    def use_of(self, share: DeviceShare) -> Use:
        """One slot, and the memory and cores of the share."""
        return Use(1, share.memory_mib, share.core_percent)
