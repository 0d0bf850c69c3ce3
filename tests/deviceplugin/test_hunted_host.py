"""What the plugin finds on hosts, found by hunting: links in open folders, machines without nodes of cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.deviceplugin.host_devices import card_node, control_nodes
from hami.deviceplugin.host_files import prepare_container_dir
from hami.nvml.probe import CardFacts

CARD = CardFacts(uuid="GPU-a", index=0, name="A", memory_bytes=1 << 34, minor=3)


def test_a_link_in_the_place_of_the_lock_folder_opens_nothing_else(tmp_path: Path) -> None:
    """The folder lies in /tmp: whoever is there first after a boot could have /etc made writable for all."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    lock = tmp_path / "vgpulock"
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="vgpulock"):
        prepare_container_dir(tmp_path / "containers" / "uid_main", lock, "x.cache")
    assert precious.stat().st_mode & 0o777 == 0o700


def test_a_lock_folder_of_too_narrow_a_mode_is_opened(tmp_path: Path) -> None:
    lock = tmp_path / "vgpulock"
    lock.mkdir(mode=0o700)
    folder = tmp_path / "containers" / "uid_main"
    prepare_container_dir(folder, lock, "x.cache")
    assert lock.stat().st_mode & 0o777 == 0o777
    assert folder.stat().st_mode & 0o777 == 0o777
    assert (folder / "x.cache").stat().st_mode & 0o777 == 0o666


def test_what_stands_in_a_containers_place_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    folder = tmp_path / "containers" / "uid_main"
    folder.parent.mkdir()
    folder.symlink_to(precious)
    prepare_container_dir(folder, tmp_path / "lock", "x.cache")
    assert [entry.name for entry in precious.iterdir()] == ["kept"]
    assert not folder.is_symlink()
    assert [entry.name for entry in folder.parent.iterdir()] == ["uid_main"]


@pytest.mark.parametrize(
    ("there", "node"),
    [
        (["nvidia3", "nvidiactl"], "/dev/nvidia3"),
        (["nvidia3", "dxg"], "/dev/nvidia3"),
        (["dxg"], "/dev/dxg"),
        ([], "/dev/nvidia3"),
    ],
)
def test_the_node_of_a_card_under_wsl(tmp_path: Path, there: list[str], node: str) -> None:
    """There is one node for all cards, and a container with another one does not start (k8s-device-plugin#332)."""
    (tmp_path / "dev").mkdir()
    for name in there:
        (tmp_path / "dev" / name).touch()
    assert card_node(tmp_path, CARD).container_path == node
    assert [each.container_path for each in control_nodes(tmp_path)] == [
        f"/dev/{name}" for name in there if name == "nvidiactl"
    ]
