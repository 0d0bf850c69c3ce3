"""What the fuzz tests of the plugin go through: Allocate over pods in memory, and how many cases there are."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, settings

from hami.core.errors import HamiError
from hami.core.keys import NODE_LOCK
from hami.core.objects import Node, ObjectMeta, Pod
from hami.deviceplugin.allocate import Allocator
from hami.deviceplugin.board import Board
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shared_cards import SharedCards
from hami.nvml.probe import CardFacts
from tests.deviceplugin.bench import NODE, A, B, RecordedEvents
from tests.deviceplugin.memory_api import MemoryApi

SOAK = 10 if os.environ.get("HAMI_SOAK", "0") not in ("", "0") else 1


def cases(count: int) -> settings:
    return settings(max_examples=count * SOAK, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def check_words(refusal: HamiError, *wanted: str) -> None:
    """A refusal is a sentence that names what it is about."""
    text = str(refusal)
    assert len(text) > len("".join(wanted)) + 10
    assert all(word in text for word in wanted)
    assert "Traceback" not in text


class World:
    """A plugin's Allocate over pods in memory, files in a folder, one loop for all cases."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        vgpu = folder / "hook/vgpu"
        vgpu.mkdir(parents=True)
        (vgpu / "libvgpu.so").touch()
        (vgpu / "ld.so.preload").write_text(f"{folder}/hook/vgpu/libvgpu.so\n")
        self.settings = PluginSettings(
            NODE, kubelet_dir=folder, hook_path=folder / "hook", lock_dir=folder / "lock", cdi_root=folder / "cdi"
        )
        self.api = MemoryApi(NODE)
        self.view = NodeView(NODE, time.monotonic)
        self.events = RecordedEvents()
        self.board = Board(self.settings)
        cards = tuple(CardFacts(uuid, index, "T4", 1 << 34) for index, uuid in enumerate((A, B)))
        self.loop.run_until_complete(self.board.set_cards(cards))
        self.allocator = Allocator(
            self.settings, self.board, self.view, self.api, self.events, ContainerSetup(self.settings), None, lambda: 1
        )

    def put(self, pods: Sequence[Pod], token: str | None) -> None:
        self.api.pods = {pod.key: pod for pod in pods}
        annotations = {} if token is None else {NODE_LOCK: token}
        self.api.node = Node(ObjectMeta(name=NODE, annotations=annotations, resource_version="1"))
        self.events.on_pods.clear()
        self.events.on_nodes.clear()

    def served(self) -> SharedCards:
        return SharedCards(self.settings, self.allocator, Preferences(self.settings, self.view, self.api))
