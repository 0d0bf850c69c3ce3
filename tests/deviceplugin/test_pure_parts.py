"""The parts of the plugin that need no node: ids, scores, health, files, texts."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from hami.core.objects import Container, EnvVar, Node, NodeStatus, ObjectMeta
from hami.deviceplugin.annotate import handshake
from hami.deviceplugin.board import BoardState, capped_replicas
from hami.deviceplugin.container_setup import opts_out
from hami.deviceplugin.host_files import (
    container_dir,
    limits_file,
    orphaned_dirs,
    prepare_container_dir,
    remove_dirs,
    write_atomically,
)
from hami.deviceplugin.offer_check import OfferCheck
from hami.deviceplugin.pair_scores import asymmetric, score
from hami.deviceplugin.replicas import card_of, device_list, preferred_ids
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts, PairFacts
from hami.nvml.simulated import made_uuid
from hami.vendors.nvidia.config import NvidiaConfig
from tests.deviceplugin.bench import A, B, RecordedEvents

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("device_id", "card"),
    [
        (f"{UUID}-7", UUID),
        (f"{UUID}-99", UUID),
        (UUID, UUID),
        (f"{UUID}::3", UUID),
        ("GPU-a-1", "GPU-a-1"),
        (f"MIG-{UUID[4:]}", f"MIG-{UUID[4:]}"),
    ],
)
def test_the_card_of_an_id(device_id: str, card: str) -> None:
    assert card_of(device_id) == card


@pytest.mark.parametrize(
    ("cards", "available", "must", "expected"),
    [
        ([A], [f"{B}-0", f"{A}-0"], [], [f"{A}-0"]),
        ([A, A], [f"{A}-0", f"{A}-1"], [], [f"{A}-0", f"{A}-1"]),
        ([A], [f"{A}-0", f"{A}-1"], [f"{A}-1"], [f"{A}-1"]),
        ([A], [f"{A}-0", f"{B}-1"], [f"{B}-1"], [f"{B}-1"]),
        ([A, A], [f"{A}-0", f"{B}-1", f"{A}-2"], [f"{B}-1"], [f"{A}-0", f"{B}-1"]),
        ([A, B], [f"{A}-0", f"{B}-1", f"{B}-2"], [f"{B}-2"], [f"{A}-0", f"{B}-2"]),
        ([A], [f"{A}-0", f"{A}-1"], [f"{A}-1", f"{A}-0"], None),
        ([A, B], [f"{A}-0"], [], None),
        ([A], [f"{A}-0", f"{A}-1"], [], [f"{A}-0"]),
    ],
)
def test_preferred_ids(cards: list[str], available: list[str], must: list[str], expected: list[str] | None) -> None:
    assert preferred_ids(cards, available, must, len(cards)) == expected


def test_preferred_ids_need_the_asked_size() -> None:
    assert preferred_ids([A], [f"{A}-0", f"{A}-1"], [], 2) is None


@pytest.mark.parametrize(("asked", "cards"), [(10, 8), (100, 16), (20_000, 8), (1_000_000, 1)])
def test_the_list_fits_into_kubelets_message(asked: int, cards: int) -> None:
    replicas = capped_replicas(asked, cards)
    facts = tuple(CardFacts(made_uuid("n", index), index, "T4", 1, numa=3) for index in range(cards))
    size = device_list(BoardState(facts, replicas), numa=True).ByteSize()
    assert size <= 4 * 1024 * 1024
    assert replicas == asked or size > 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (PairFacts("a", "b", "system"), 10),
        (PairFacts("a", "b", "internal"), 60),
        (PairFacts("a", "b", "node", 4, 4), 420),
        (PairFacts("a", "b", "node", 4, 3), 0),
        (PairFacts("a", "b", "node", 0, 0, 18), 1820),
        (PairFacts("a", "b", "node", 2, 2, 18), 220),
        (PairFacts("a", "b", "node", 40, 40), 1820),
        (PairFacts("a", "b", ""), 0),
    ],
)
def test_pair_score(pair: PairFacts, expected: int) -> None:
    assert score(pair) == expected
    assert asymmetric([pair]) == ([("a", "b")] if pair.links_forward != pair.links_back else [])


def test_container_folders_are_made_anew_open_and_collected(tmp_path: Path) -> None:
    folder = container_dir(tmp_path, "uid-1", "main")
    for content in ("old", "new"):
        prepare_container_dir(folder, tmp_path / "lock")
        assert list(folder.iterdir()) == []
        (folder / content).write_text("x")
    prepare_container_dir(container_dir(tmp_path, "uid-2", "main"), tmp_path / "lock")
    assert [each.name for each in sorted((tmp_path / "containers").iterdir())] == ["uid-1_main", "uid-2_main"]
    for name in ("uid-1_main", "uid-2_main", "uid-3_main"):
        write_atomically(limits_file(tmp_path, name), b"", 0o644)
    assert orphaned_dirs(tmp_path, frozenset({"uid-2"})) == {"uid-1_main", "uid-3_main"}
    remove_dirs(tmp_path, ["uid-1_main", "uid-3_main", "absent"])
    assert [each.name for each in (tmp_path / "limits").iterdir()] == ["uid-2_main"]
    assert [each.name for each in (tmp_path / "containers").iterdir()] == ["uid-2_main"]
    assert orphaned_dirs(tmp_path / "absent", frozenset()) == frozenset()


@pytest.mark.parametrize(("uid", "container"), [("../x", "main"), ("", "main"), ("uid", ""), ("uid", "a/b")])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, uid: str, container: str) -> None:
    with pytest.raises(ValueError, match="no name of a container's folder"):
        container_dir(tmp_path, uid, container)


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a/ld.so.preload"
    write_atomically(path, b"one", 0o644)
    write_atomically(path, b"two", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    assert list(path.parent.iterdir()) == [path]


def test_an_offer_that_is_not_ours_is_said_once_and_only_if_it_lasts() -> None:
    events, clock = RecordedEvents(), [0.0]
    check = OfferCheck(PluginSettings("n1"), events, lambda: clock[0])
    state = BoardState((CardFacts(A, 0, "T4", 1), CardFacts(B, 1, "T4", 1)), 10, {B: "lost"})

    def node(count: str) -> Node:
        return Node(ObjectMeta(name="n1"), status=NodeStatus(allocatable={"nvidia.com/gpu": count}))

    for seconds, count, said in [
        (0, "2", 0),
        (59, "2", 0),
        (60, "2", 1),
        (999, "2", 1),
        (1000, "10", 1),
        (1001, "2", 1),
    ]:
        clock[0] = seconds
        check.observe(node(count), state)
        assert len(events.on_nodes) == said, (seconds, count)
    clock[0] = 1061
    check.observe(node("2"), state)
    assert len(events.on_nodes) == 2
    assert "kubelet offers 2 nvidia.com/gpu, this plugin lists 10" in events.on_nodes[0][2]


@pytest.mark.parametrize(("split", "offered"), [(1000, "2k"), (1000, "2000"), (500, "1e3"), (10, "20")])
def test_b94_a_count_that_kubelet_writes_with_a_suffix_is_our_own(split: int, offered: str) -> None:
    events, clock = RecordedEvents(), [0.0]
    check = OfferCheck(PluginSettings("n1"), events, lambda: clock[0])
    state = BoardState((CardFacts(A, 0, "T4", 1), CardFacts(B, 1, "T4", 1)), split)
    node = Node(ObjectMeta(name="n1"), status=NodeStatus(allocatable={"nvidia.com/gpu": offered}))
    for clock[0] in (0.0, 61.0, 999.0):
        check.observe(node, state)
    assert (events.on_nodes, check.foreign) == ([], False)


@pytest.mark.parametrize(
    ("offered", "foreign"), [("2", True), ("21", True), ("0", False), (None, False), ("20", False)]
)
def test_b94_what_somebody_else_offers_under_our_name(offered: str | None, foreign: bool) -> None:
    clock = [0.0]
    check = OfferCheck(PluginSettings("n1"), RecordedEvents(), lambda: clock[0])
    state = BoardState((CardFacts(A, 0, "T4", 1), CardFacts(B, 1, "T4", 1)), 10)
    status = NodeStatus(allocatable={"nvidia.com/gpu": offered} if offered is not None else None)
    node = Node(ObjectMeta(name="n1"), status=status)
    check.observe(node, state)
    assert not check.foreign
    clock[0] = 60.0
    check.observe(node, state)
    assert check.foreign is foreign
    ours = Node(ObjectMeta(name="n1"), status=NodeStatus(allocatable={"nvidia.com/gpu": "20"}))
    check.observe(ours, state)
    assert not check.foreign


def test_handshake_text() -> None:
    moment = datetime.datetime(2026, 1, 2, 4, 4, 5, 678000, datetime.timezone(datetime.timedelta(hours=1)))
    assert handshake(moment) == "Reported 2026-01-02 03:04:05.678000 +0000 UTC"


def test_paths_follow_the_resource_name() -> None:
    settings = PluginSettings("n1", NvidiaConfig(resource_count_name="example.com/vgpu"))
    assert settings.plugin_socket.name == "nvidia-vgpu.sock"
    assert str(settings.vgpu_dir) == "/usr/local/vgpu"


def test_opting_out_needs_a_true_literal() -> None:
    for value, expected in {"1": True, "t": True, "T": True, "true": True, "TRUE": True, "True": True}.items():
        assert opts_out(Container(env=(EnvVar("CUDA_DISABLE_CONTROL", value),))) is expected
    for value in ("yes", "false", "", "0"):
        assert not opts_out(Container(env=(EnvVar("CUDA_DISABLE_CONTROL", value),)))
