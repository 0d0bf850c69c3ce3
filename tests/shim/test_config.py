"""What the limits in the environment and in the mounted file mean, and that bad text never lifts a limit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.shim import harness
from tests.shim.conftest import ContainerFactory
from tests.shim.container import card, json_lines
from tests.shim.harness import MIB

KIB = 1024
GIB = 1024 * MIB
REFUSED = None
SIZES: tuple[tuple[str, int | None], ...] = (
    ("4g", 4 * GIB),
    ("4096m", 4 * GIB),
    ("4Gi", 4 * GIB),
    ("4GB", 4 * GIB),
    ("4GiB", 4 * GIB),
    ("4gib", 4 * GIB),
    (" 4G ", 4 * GIB),
    ("4 G", 4 * GIB),
    ("1.5G", 3 * GIB // 2),
    ("0.5g", GIB // 2),
    ("08G", 8 * GIB),
    ("010m", 10 * MIB),
    ("2097152k", 2 * GIB),
    ("2097152K", 2 * GIB),
    ("1t", 1024 * GIB),
    ("1048576", MIB),
    ("1048576b", MIB),
    ("0", 0),
    ("0m", 0),
    ("-1", REFUSED),
    ("+1g", REFUSED),
    ("", REFUSED),
    (" ", REFUSED),
    ("50%", REFUSED),
    ("0x10", REFUSED),
    ("1e3", REFUSED),
    ("4Gx", REFUSED),
    ("4 G B", REFUSED),
    ("4gg", REFUSED),
    ("g", REFUSED),
    ("1.g", REFUSED),
    (".5g", REFUSED),
    ("1.5", REFUSED),
    ("1,5g", REFUSED),
    ("99999999999999999999", REFUSED),
    ("18446744073709551615g", REFUSED),
    ("unlimited", REFUSED),
)


LINES = st.text(st.characters(codec="ascii", exclude_characters="\n\0\r"), max_size=40)


def _parse(lines: list[str]) -> list[int | None]:
    done = subprocess.run(
        [str(harness.build_unit("parser"))],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [None if line == "refused" else int(line) for line in done.stdout.splitlines()]


def test_sizes(fakes: Path) -> None:
    assert dict(zip([text for text, _ in SIZES], _parse([text for text, _ in SIZES]), strict=True)) == dict(SIZES)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\0\r"), max_size=40), min_size=50, max_size=80)
)
def test_no_text_crashes_the_parser_or_passes_for_nothing(fakes: Path, lines: list[str]) -> None:
    for line, value in zip(lines, _parse(lines), strict=True):
        if value is not None:
            assert any(c.isdigit() for c in line)
            assert value < 2**64


def _alloc(container: ContainerFactory, mib: int, **env: str) -> int:
    return container(limit_mib=None, **env).run("test_alloc", mib).returncode


@pytest.mark.parametrize("text", [text for text, value in SIZES if value is None])
def test_refused_text_never_lifts_the_limit(container: ContainerFactory, text: str) -> None:
    box = container(limit_mib=None, CUDA_DEVICE_MEMORY_LIMIT_0=text)
    done = box.run("test_alloc", 1)
    assert done.returncode not in (0, -11), done.stdout
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in done.stderr
    assert box.run("test_alloc", 1, shim=False).returncode == 0  # negative control


def test_refusal_is_one_line(container: ContainerFactory) -> None:
    done = container(limit_mib=None, CUDA_DEVICE_MEMORY_LIMIT="many").run("route_driver", 1024, 64)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("text", "value"), [(text, value) for text, value in SIZES if value and value <= 8 * GIB])
def test_limit_in_the_environment(container: ContainerFactory, text: str, value: int) -> None:
    done = container(limit_mib=None, CUDA_DEVICE_MEMORY_LIMIT=text).run("cards", 1)
    assert json_lines(done)[0]["total"] == value


def test_index_beats_general_and_uuid_beats_index(container: ContainerFactory) -> None:
    cards = [card(i) for i in range(3)]
    box = container(
        limit_mib=None,
        cards=cards,
        CUDA_DEVICE_MEMORY_LIMIT="300m",
        CUDA_DEVICE_MEMORY_LIMIT_1="200m",
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{cards[2].uuid}": "100m"},
    )
    assert [row["total"] for row in json_lines(box.run("cards", 1))] == [300 * MIB, 200 * MIB, 100 * MIB]


def _write(folder: Path, text: str) -> str:
    path = folder / "vgpu.conf"
    path.write_text(text)
    return str(path)


def test_file_holds_where_the_environment_was_cleared(container: ContainerFactory, tmp_path: Path) -> None:
    region = tmp_path / "from-file.cache"
    text = f"# mounted by the plugin\nCUDA_DEVICE_MEMORY_LIMIT_0=100m\nCUDA_DEVICE_MEMORY_SHARED_CACHE={region}\n"
    box = container(limit_mib=None, VGPU_CONFIG_FILE=_write(tmp_path, text))
    cleared = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": None, "NVIDIA_VISIBLE_DEVICES": None}
    done = box.run("test_alloc", 128, extra=cleared)
    assert done.returncode == 2
    assert f"total={100 * MIB}" in box.run("test_alloc", 64, extra=cleared).stdout
    assert region.exists()


@pytest.mark.parametrize(("environment", "total_mib"), [("50m", 50), ("500m", 100), ("0", 100), ("rubbish", 100)])
def test_environment_lowers_the_file_but_never_lifts_it(
    container: ContainerFactory, tmp_path: Path, environment: str, total_mib: int
) -> None:
    path = _write(tmp_path, "CUDA_DEVICE_MEMORY_LIMIT_0=100m\n")
    box = container(limit_mib=None, VGPU_CONFIG_FILE=path, CUDA_DEVICE_MEMORY_LIMIT_0=environment)
    region = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": None}
    assert json_lines(box.run("cards", 1, extra=region))[0]["total"] == total_mib * MIB


@pytest.mark.parametrize(
    ("file", "environment", "percent"),
    [("30", "20", 20), ("30", "80", 30), ("30", "0", 30), ("30", "rubbish", 30), ("0", "80", 80), ("100", "80", 80)],
)
def test_environment_lowers_the_core_limit_but_never_lifts_it(
    container: ContainerFactory, tmp_path: Path, file: str, environment: str, percent: int
) -> None:
    path = _write(tmp_path, f"CUDA_DEVICE_MEMORY_LIMIT_0=100m\nCUDA_DEVICE_SM_LIMIT={file}\n")
    box = container(limit_mib=None, VGPU_CONFIG_FILE=path, CUDA_DEVICE_SM_LIMIT=environment)
    region = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "core.cache")}
    mounted = tmp_path / "vgpu.conf"
    mounted.write_text(mounted.read_text() + f"CUDA_DEVICE_MEMORY_SHARED_CACHE={tmp_path / 'core.cache'}\n")
    assert box.run("test_alloc", 1, extra=region).returncode == 0
    shown = box.run([str(box.shim / "vgpu-info")], extra=region).stdout
    assert re.search(r"core limit +(\d+) %", shown), shown
    assert int(re.findall(r"core limit +(\d+) %", shown)[0]) == percent


def test_unreadable_file_refuses(container: ContainerFactory, tmp_path: Path) -> None:
    done = container(limit_mib=None, VGPU_CONFIG_FILE=str(tmp_path)).run("test_alloc", 1)
    assert done.returncode not in (0, -11)
    assert "configuration" in done.stderr


def test_a_later_process_without_settings_keeps_the_regions_limit(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    with box.holding(10):
        done = box.run("test_alloc", 128, extra={"CUDA_DEVICE_MEMORY_LIMIT_0": None})
        assert done.returncode == 2
        lower = box.run("test_alloc", 64, extra={"CUDA_DEVICE_MEMORY_LIMIT_0": "50m"})
        assert lower.returncode == 2
        higher = box.run("test_alloc", 128, extra={"CUDA_DEVICE_MEMORY_LIMIT_0": "500m"})
        assert higher.returncode == 2


def test_opt_out_variable_is_not_the_shims(container: ContainerFactory) -> None:
    """CUDA_DISABLE_CONTROL decides whether the plugin mounts the shim; inside, no value of it lifts a limit (B122)."""
    for value in ("true", "1", "false", ""):
        assert container(limit_mib=100, CUDA_DISABLE_CONTROL=value).run("test_alloc", 128).returncode == 2
