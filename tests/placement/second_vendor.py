"""A second vendor for tests, with a lock of its own beside the token as Cambricon's plugin has (spec/scheduler 9)."""

from __future__ import annotations

from typing import Any

import msgspec

from hami.core.codec import RegisterForm, encode_register
from hami.core.device_type import CardPick, NodeLock, Refusal, ShareCheck
from hami.core.model import DeviceRequest, DeviceShare, NodeState, Policies, Selectors
from hami.core.objects import Container, Node, ResourceRequirements
from hami.core.reasons import Reason, Rejection, rejection
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.placement.fakes import card, make_node

OWN_LOCK = "cambricon.com/dsmlu.lock"
COUNT = "cambricon.com/vmlu"
MEMORY = "cambricon.com/mlu.smlu.vmemory"


class Mlu(Nvidia):
    """NVIDIA's rules under other names. `node_lock` is what its plugin goes by."""

    word = "MLU"
    register_key = "example.com/node-mlu-register"
    handshake_key = "example.com/node-mlu-handshake"
    score_key = ""
    to_allocate_key = "hami.io/cambricon-mlu-devices-to-allocate"
    allocated_key = "hami.io/cambricon-mlu-devices-allocated"
    node_lock: NodeLock | None = NodeLock(OWN_LOCK, expiry_s=120.0)

    def __init__(self) -> None:
        names = {"resource_count_name": COUNT, "resource_memory_name": MEMORY}
        names |= {"resource_memory_percentage_name": f"{MEMORY}-percentage"}
        names |= {"resource_core_name": "cambricon.com/mlu.smlu.vcore", "resource_priority_name": "cambricon.com/none"}
        super().__init__(NvidiaConfig(**names))  # type: ignore[arg-type]  # names of resources only

    def request(self, container: Container) -> DeviceRequest | Refusal | None:
        asked = super().request(container)
        if asked is None or isinstance(asked, Refusal):
            return asked
        return msgspec.structs.replace(asked, vendor=self.word)

    def pick(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None = None,
    ) -> CardPick | Rejection:
        """The first card of this vendor with room."""
        for at, (device, use) in enumerate(zip(state.devices, state.uses, strict=True)):
            if device.vendor == self.word and use.memory_mib + request.memory_mib <= device.memory_mib:
                return CardPick(((at, DeviceShare(device.id, self.word, request.memory_mib, 0)),))
        return rejection({Reason.CARD_INSUFFICIENT_MEMORY: 1}, 1)


class Unlocked(Mlu):
    """A vendor whose plugin goes by no lock, such as Mthreads'."""

    node_lock: NodeLock | None = None


def mixed_node(name: str, mlu: Mlu, cards: int = 2) -> Node:
    """A node with as many cards of each vendor."""
    node = make_node(name, cards)
    others = [card(number, id=f"MLU-{number}", vendor=mlu.word, type="MLU370") for number in range(cards)]
    notes = node.annotations | {mlu.register_key: encode_register(others, RegisterForm.JSON)}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=notes))


def asking(*, gpu: int = 0, mlu: int = 0) -> Container:
    """MiB of a card of each vendor; 0 for none."""
    limits: dict[str, Any] = {}
    limits |= {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(gpu)} if gpu else {}
    limits |= {COUNT: "1", MEMORY: str(mlu)} if mlu else {}
    return Container(name="c", resources=ResourceRequirements(limits=limits))
