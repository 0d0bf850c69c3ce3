"""Settings and surroundings that nobody means, found by hunting: no hang, no signal, and no limit lifted by them."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.harness import MIB, Container, card, json_lines

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
HANGS_AFTER_S = 20


def _refused(box: Container, name: str) -> None:
    """One line that names the setting, an error of CUDA, and no signal; without the shim the program runs."""
    done = box.run("test_alloc", 1, timeout_s=HANGS_AFTER_S)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cuInit" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert name in done.stderr
    assert box.run("test_alloc", 1, shim=False).returncode == 0  # negative control


@pytest.mark.parametrize(
    "suffix", ["_", "_-1", "_+1", "_0x0", "_ 0", "_0 ", "_1.0", "_a", "0", "S", "_MIG-1", "_gpu-0"]
)
def test_a_limit_whose_name_means_no_card_is_refused(container: ContainerFactory, suffix: str) -> None:
    """It was meant to limit something; read as nothing it would lift the limit (kind of HAMi-core#323)."""
    _refused(container(limit_mib=None, **{f"{LIMIT}{suffix}": "100m"}), f"{LIMIT}{suffix}")


@pytest.mark.parametrize("suffix", ["", "_0", f"_{card(0).uuid}"])
@pytest.mark.parametrize("value", [" " * 5000 + "100m", "0" * 5000 + "100m", "1" * 70000])
def test_a_limit_too_long_to_be_read_is_refused(container: ContainerFactory, suffix: str, value: str) -> None:
    _refused(container(limit_mib=None, **{f"{LIMIT}{suffix}": value}), LIMIT)


def test_a_region_path_that_is_too_long_is_refused(container: ContainerFactory) -> None:
    """Cut off it would be another file, with an account of its own."""
    for path in ("/tmp/" + "x" * 4095, "/tmp/" + "x" * 5000):
        _refused(container(limit_mib=100, **{REGION: path}), REGION)


def test_a_region_path_that_depends_on_the_folder_is_refused(container: ContainerFactory) -> None:
    """Processes that start in different folders would each have the whole share."""
    for path in ("region.cache", "./region.cache", "../region.cache"):
        _refused(container(limit_mib=100, **{REGION: path}), REGION)
    assert not Path("region.cache").exists()


def test_an_empty_region_path_is_the_default(container: ContainerFactory) -> None:
    done = container(limit_mib=100, **{REGION: ""}).run([str(container().shim / "vgpu-info")])
    assert "cudevshr.cache" in done.stdout


@pytest.mark.parametrize("beside", ["_16", "_99", "_4294967296", "_18446744073709551616", "_" + "9" * 60])
def test_limits_of_cards_that_are_not_there_change_nothing(container: ContainerFactory, beside: str) -> None:
    box = container(limit_mib=100, **{f"{LIMIT}{beside}": "1m", f"{LIMIT}_5": "2m"})
    (row,) = json_lines(box.run("cards", 64))
    assert (row["total"], row["alloc"]) == (100 * MIB, 0)
    assert box.run("test_alloc", 128).returncode == 2


def test_a_card_named_late_in_a_long_list_of_limits_is_limited(container: ContainerFactory) -> None:
    """Upstream's region has sixteen places; a list that names cards of the whole rack may be longer."""
    others = {f"{LIMIT}_{card(i).uuid}": "8g" for i in range(1, 40)}
    box = container(limit_mib=None, **others, **{f"{LIMIT}_{card(0).uuid}": "100m"})
    assert box.run("test_alloc", 64).returncode == 0
    assert box.run("test_alloc", 128).returncode == 2


def test_more_named_limits_than_can_be_kept_are_refused(container: ContainerFactory) -> None:
    _refused(container(limit_mib=None, **{f"{LIMIT}_{card(i).uuid}": "100m" for i in range(65)}), LIMIT)


def test_odd_names_beside_a_mounted_file_change_nothing(container: ContainerFactory, tmp_path: Path) -> None:
    """There the environment is the user's: it neither lifts the limit nor stops the others of the container."""
    config = tmp_path / "vgpu.conf"
    region = tmp_path / "file.cache"
    config.write_text(f"{LIMIT}_0=100m\n{REGION}={region}\n")
    odd = {f"{LIMIT}_x": "1m", f"{LIMIT}_1": "0" * 5000, REGION: "here.cache", "CUDA_DEVICE_SM_LIMIT": "9" * 5000}
    box = container(limit_mib=None, VGPU_CONFIG_FILE=str(config), **odd)
    assert box.run("test_alloc", 64).returncode == 0
    assert box.run("test_alloc", 128).returncode == 2


@pytest.mark.parametrize("program", [["nvml_view"], ["test_alloc", "1"], ["vgpu-info"]])
def test_a_pipe_in_the_place_of_the_region_keeps_nobody_waiting(
    container: ContainerFactory, program: list[str]
) -> None:
    box = container(limit_mib=100)
    os.mkfifo(box.region)
    path = str(box.shim / program[0]) if program[0] == "vgpu-info" else box.program(program[0])
    done = box.run([path, *program[1:]], timeout_s=HANGS_AFTER_S)
    assert done.returncode == (1 if program[0] == "test_alloc" else 0), done.stdout + done.stderr


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/proc/self/mem", "/proc/self/mounts", "/"])
def test_no_file_is_no_region(container: ContainerFactory, path: str) -> None:
    box = container(limit_mib=100, **{REGION: path})
    assert box.run("test_alloc", 1, timeout_s=HANGS_AFTER_S).returncode == 1
    assert box.run([str(box.shim / "vgpu-info")], timeout_s=HANGS_AFTER_S).returncode == 0


def _with_limit(box: Container, kind: int, value: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [box.program("test_alloc"), "8"],
        env=box.environment(),
        preexec_fn=lambda: resource.setrlimit(kind, (value, value)),
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        check=False,
    )


def test_a_process_that_may_write_no_large_file_is_refused_not_killed(container: ContainerFactory) -> None:
    """`ulimit -f`: growing the region would end the program by SIGXFSZ. Where the region is there, nothing is grown."""
    box = container(limit_mib=100)
    done = _with_limit(box, resource.RLIMIT_FSIZE, 4096)
    assert done.returncode == 1, done.stderr
    assert "ulimit -f" in done.stderr
    assert box.run("test_alloc", 8).returncode == 0
    # The stand-in driver keeps its own book in a file, which is there now.
    assert _with_limit(box, resource.RLIMIT_FSIZE, 4096).returncode == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (resource.RLIMIT_NOFILE, 4),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_AS, 64 * MIB),
        (resource.RLIMIT_CORE, 0),
    ],
)
def test_narrow_limits_of_the_process_do_not_matter(container: ContainerFactory, kind: int, value: int) -> None:
    done = _with_limit(container(limit_mib=100), kind, value)
    assert done.returncode == 0, done.stdout + done.stderr
