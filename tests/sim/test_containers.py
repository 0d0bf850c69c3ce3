"""Real containers without a compiler: why there are none, the node's files, the root folder, the order of words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hami.nvml.simulated import SimulatedProbe
from hami.sim import profiles
from hami.sim.containers import build, rootfs, toolkit
from hami.sim.containers.host import NodeHost
from hami.sim.containers.rootfs import Bind
from hami.sim.containers.toolkit import ContainersUnavailableError, Toolkit


def test_a_machine_without_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainersUnavailableError, match="no C compiler"):
        toolkit.prepare(tmp_path, print)


def test_an_installation_without_the_drivers_sources_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "DRIVER_SOURCES", tmp_path / "absent")
    with pytest.raises(build.BuildError, match="checkout"):
        build.build_driver(tmp_path, print)


def test_a_machine_without_namespaces_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "enter").write_text("#!/bin/sh\necho enter: not permitted >&2\nexit 125\n")
    (tmp_path / "enter").chmod(0o755)
    with pytest.raises(ContainersUnavailableError, match=r"no namespaces.*not permitted"):
        toolkit.find_isolation(tmp_path, tmp_path)


async def test_plugin_and_driver_see_the_same_cards(tmp_path: Path) -> None:
    (tmp_path / "libvgpu.so").write_text("shim")
    host = NodeHost(tmp_path / "host", "n1", profiles.load("mixed"))
    host.install(Toolkit(tmp_path / "libvgpu.so", tmp_path, tmp_path, "mount"), "/usr/local")
    vgpu = host.hook_path / "vgpu"
    assert (vgpu / "libvgpu.so").read_text() == "shim"
    assert (vgpu / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"
    seen = (await SimulatedProbe(host.profile_file, "n1").cards()).cards
    lines = [line.split() for line in (host.cards / "cards.conf").read_text().splitlines()]
    assert [line[1] for line in lines if line[0] == "card"] == [f"uuid={card.uuid}" for card in seen]
    assert len({card.uuid for card in seen}) == len(seen) == profiles.load("mixed").card_count
    again = NodeHost(tmp_path / "again", "n1", profiles.load("mixed"))
    assert again.profile == host.profile
    assert yaml.safe_load(host.profile_file.read_text())["name"] == "mixed"


def test_the_root_folder_has_the_machines_programs_and_its_own_usr_local(tmp_path: Path) -> None:
    driver, root = tmp_path / "driver", tmp_path / "root"
    driver.mkdir()
    root.mkdir()
    (driver / "libcuda.so.1").write_text("driver")
    binds = rootfs.prepare(root, driver, tmp_path)
    assert Bind("/usr", "/run/machine/usr") in binds
    assert (root / "usr" / "bin").readlink() == Path("/run/machine/usr/bin")
    assert list((root / "usr" / "local").iterdir()) == []
    assert (root / "usr" / "lib" / "libcuda.so.1").read_text() == "driver"
    assert all(bind.read_only for bind in binds)


def test_the_command_line_of_enter() -> None:
    binds = [Bind("/a", "/b"), Bind("/c", "/d", read_only=False)]
    made = toolkit.enter_command(Path("/p"), "mount+pid", Path("/r"), binds, {"A": "1 2", "B": ""}, ["/x", "y"])
    assert made == [
        "/p/enter", "mount+pid", "/r", "ro", "/a", "/b", "rw", "/c", "/d", "proc", "--", "A=1 2", "B=", "--", "/x", "y",
    ]  # fmt: skip
    assert toolkit.enter_command(Path("/p"), "mount", Path("/r"), [], {}, ["/x"])[3:6] == ["ro", "/proc", "/proc"]
