"""Settings and surroundings that nobody means, found by hunting: no hang, no signal, and no limit lifted by them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import Container, card, json_lines, kill
from tests.shim.harness import MIB, build_bystanders

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
HANGS_AFTER_S = 120


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


MEMORY_LIMIT, CONFIGURED_LIMIT = 1600, 2011136 + 32


@pytest.mark.parametrize("value", [0, 200 * MIB, 2**63, 2**64 - 1])
def test_no_limit_in_the_region_raises_a_mounted_one(container: ContainerFactory, tmp_path: Path, value: int) -> None:
    """Every process of the container may write into the region; the mounted file is the operator's."""
    region, config = tmp_path / "mounted.cache", tmp_path / "vgpu.conf"
    box = container(limit_mib=None, VGPU_CONFIG_FILE=str(config), **{REGION: str(region)})
    config.write_text(f"{LIMIT}_0=100m\n{REGION}={region}\nNVIDIA_VISIBLE_DEVICES={box.machine.cards[0].uuid}\n")
    with box.holding(40):
        with region.open("r+b") as file:
            for place in (MEMORY_LIMIT, CONFIGURED_LIMIT):
                file.seek(place)
                file.write(struct.pack("<Q", value))
        assert box.run("test_alloc", 40).returncode == 0
        assert box.run("test_alloc", 80).returncode == 2
        assert f"total={100 * MIB}" in box.run("test_alloc", 40).stdout
        (seen,) = json_lines(box.run("nvml_view"))
        assert seen["v1"] == [100 * MIB, 40 * MIB, 60 * MIB]
        with region.open("r+b") as file:
            file.seek(MEMORY_LIMIT)
            file.write(struct.pack("<Q", 50 * MIB))
        assert box.run("test_alloc", 40).returncode == 2  # lowered it holds
        (seen,) = json_lines(box.run("nvml_view"))
        assert seen["v1"] == [50 * MIB, 40 * MIB, 10 * MIB]


def test_processes_of_two_pid_namespaces_count_as_two(container: ContainerFactory) -> None:
    """Both have the same pid: neither is taken for the other, and the end of one gives back what that one had."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a pid namespace")
    box = container(limit_mib=100)
    command = ["unshare", "--pid", "--fork", "--kill-child", box.program("test_alloc_hold"), "40"]
    started = [
        subprocess.Popen(command, env=box.environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("held")
        assert box.run("test_alloc", 30).returncode == 2
        kill(started[:1])
        deadline_s = time.monotonic() + 120
        while box.run("test_alloc", 50).returncode != 0:
            assert time.monotonic() < deadline_s
        assert box.run("test_alloc", 70).returncode == 2
    finally:
        kill(started)


def test_a_stopped_process_and_a_dead_unwaited_one_hold_up_nobody(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    stopped, dead = box.start("test_alloc_hold", 40), box.start("test_alloc_hold", 50)
    try:
        for process in (stopped, dead):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("held")
        stopped.send_signal(signal.SIGSTOP)
        assert box.run("test_alloc", 8, timeout_s=HANGS_AFTER_S).returncode == 0
        assert box.run("test_alloc", 16, timeout_s=HANGS_AFTER_S).returncode == 2
        dead.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert box.run("test_alloc", 58, timeout_s=HANGS_AFTER_S).returncode == 0
    finally:
        stopped.send_signal(signal.SIGCONT)
        kill([stopped, dead])


def test_the_library_preloaded_twice_counts_once(container: ContainerFactory, tmp_path: Path) -> None:
    """By the preload file and by LD_PRELOAD, under two names, beside names of nothing."""
    box = container(limit_mib=100)
    copy = Path(shutil.copy(box.shim / "libvgpu.so", tmp_path / "copy.so"))
    both = {"LD_PRELOAD": f"/no/such/library.so:{box.shim / 'libvgpu.so'}:{copy}: :"}
    done = box.run("test_alloc", 64, extra=both)
    assert "held used=67108864" in done.stdout
    assert box.run("test_alloc", 128, extra=both).returncode == 2


@pytest.mark.parametrize("limit_mib", [60, 4000])
@pytest.mark.parametrize("cuda", ["11.8", "12.4", "13.5"])
@pytest.mark.parametrize("seed", [1, 2])
def test_threads_that_roam_over_cards(container: ContainerFactory, limit_mib: int, cuda: str, seed: int) -> None:
    """Memory is booked on its own card, whatever card is current when it is taken and given back, and by whom: the
    counters of two cards were wrong at once (HAMi-core#310, #319, HAMi#320)."""
    cards = [card(i, context_kib=4096) for i in range(3)]
    box = container(limit_mib=[limit_mib] * 3, cards=cards, cuda=cuda)
    (said,) = json_lines(box.run("roam", 3, 8, 20, 400, seed))
    refused = said.pop("refused")
    assert (refused > 0) == (limit_mib == 60)
    assert all(said.values())


LOOKS_UP = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print([cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)) for mib in (64, 128)])
"""


@pytest.mark.parametrize("shim_first", [True, False])
def test_another_wrapper_of_dlsym_lifts_no_limit(container: ContainerFactory, shim_first: bool) -> None:
    """LD_PRELOAD comes before the preload file: what stands there first must not look up the driver behind our back."""
    box = container(limit_mib=100)
    other = str(build_bystanders() / "next_dlsym.so")
    order = [str(box.shim / "libvgpu.so"), other]
    preloads = {"LD_PRELOAD": ":".join(order if shim_first else order[::-1])}
    done = box.run([sys.executable, "-c", LOOKS_UP], extra=preloads, timeout_s=HANGS_AFTER_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 2]\n", "")
    alone = box.run([sys.executable, "-c", LOOKS_UP], extra={"LD_PRELOAD": other})
    assert alone.stdout == "[0, 0]\n"  # negative control
