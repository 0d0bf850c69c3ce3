"""MIG through the real pynvml over the stand-in driver in C: modes, instances, what is refused, a kill in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shim.harness import build_fakes, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

SCRIPT = """
import asyncio, sys
from pathlib import Path
import msgspec
from hami.core.errors import NvmlError
from hami.core.model import MigPlacement
from hami.nvml.real import RealProbe

async def main():
    probe = RealProbe(5, driver_root=Path(sys.argv[1]))
    said = []
    for step in sys.argv[2:]:
        what, _, rest = step.partition(":")
        numbers = [int(each) for each in rest.split(",") if each]
        try:
            if what == "on" or what == "off":
                said.append(await probe.set_mig_mode("GPU-a", enabled=what == "on"))
            elif what == "make":
                said.append(await probe.create_mig("GPU-a", numbers[0], MigPlacement(*numbers[1:])))
            elif what == "end":
                said.append(await probe.destroy_mig("GPU-a", numbers[0]))
            elif what == "processes":
                said.append(await probe.processes())
        except NvmlError as error:
            said.append(str(error))
    cards = await probe.cards()
    await probe.close()
    print(msgspec.json.encode({"said": said, "cards": cards.cards}).decode())

asyncio.run(main())
"""
ONE, TWO, THREE, MEDIA = 0, 1, 2, 7


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    library = tmp_path / "root/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(build_fakes() / "driver/12.4/libnvidia-ml.so.1")
    (tmp_path / "cards.conf").write_text(
        "card uuid=GPU-a memory_mib=40960 mig=off minor=0\ncard uuid=GPU-t4 memory_mib=15360 minor=1\n"
    )
    return tmp_path


def process(machine: Path, *steps: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One process that goes `steps` in order and then looks at the cards."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(machine / "root"), *steps],
        env={"FAKE_GPU_CONFIG": str(machine / "cards.conf"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def done(machine: Path, *steps: str, **environment: str) -> tuple[list[Any], dict[str, Any]]:
    """What each step said, and the card then."""
    ended = process(machine, *steps, **environment)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    return found["said"], found["cards"][0]


def places(card: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Id, slices and start of each instance with its compute instance."""
    return [
        (each["id"], each["slices"], each["placement"]["start"])
        for each in card["mig_instances"]
        if len(each["compute"]) == 1
    ]


def test_profiles_are_read_with_their_numbers(machine: Path) -> None:
    _, card = done(machine)
    profiles = [(each["number"], each["slices"], each["memory_mib"], each["media"]) for each in card["mig_profiles"]]
    assert profiles == [
        (0, 1, 4864, False),
        (1, 2, 9984, False),
        (2, 3, 20096, False),
        (3, 4, 20096, False),
        (4, 7, 40448, False),
        (7, 1, 4864, True),
    ]
    assert card["mig_profiles"][1]["placements"] == [{"start": start, "size": 2} for start in (0, 2, 4)]
    assert not card["mig_enabled"]


def test_instances_are_made_seen_by_others_and_taken_away(machine: Path) -> None:
    (_, made, small), card = done(machine, "on", f"make:{THREE},4,4", f"make:{MEDIA},0,1")
    assert (made["id"], made["slices"], made["memory_mib"], made["placement"]) == (2, 3, 20096, {"start": 4, "size": 4})
    assert made["compute"] == [{"id": 0, "uuid": "MIG-GPU-a-2-0", "slices": 3, "index": 0}]
    assert (small["media"], small["profile"]) == (True, MEDIA)
    assert card["mig_enabled"]
    assert places(card) == [(2, 3, 4), (7, 1, 0)]
    said, card = done(machine, "end:2", f"make:{TWO},4,2")
    assert said[0] is None
    assert places(card) == [(5, 2, 4), (7, 1, 0)]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([f"make:{ONE},0,1"], "Not Supported"),
        (["on", f"make:{TWO},1,2"], "Invalid Argument"),
        (["on", f"make:{THREE},0,4", f"make:{ONE},3,1"], "Insufficient Resources"),
        (["on", "end:9"], "Not Found"),
        (["on", f"make:{ONE},0,1", "off"], "In use by another client"),
    ],
)
def test_what_the_driver_refuses_is_an_nvml_error(machine: Path, steps: list[str], words: str) -> None:
    said, _ = done(machine, *steps)
    assert words.lower() in said[-1].lower()


def test_what_is_in_use_stays(machine: Path) -> None:
    done(machine, "on", f"make:{ONE},0,1")
    said, card = done(machine, "processes", "end:7", FAKE_MIG_IN_USE="MIG-GPU-a-7-0")
    assert said[0] == [{"uuid": "MIG-GPU-a-7-0", "pid": 4242, "memory_bytes": 1 << 20}]
    assert "in use" in said[1].lower()
    assert places(card) == [(7, 1, 0)]


def test_an_instance_whose_second_half_fails_is_undone(machine: Path) -> None:
    said, card = done(machine, "on", f"make:{ONE},0,1", FAKE_GPU_FAIL="nvmlGpuInstanceCreateComputeInstance:1:23")
    assert "Insufficient Resources" in said[1]
    assert card["mig_instances"] == []


def test_a_second_half_that_fails_is_told_also_where_the_first_stays(machine: Path) -> None:
    """Drivers call an instance in use for a moment longer (NVIDIA/go-nvml#146); it goes at the next try."""
    failing = "nvmlGpuInstanceCreateComputeInstance:1:23,nvmlGpuInstanceDestroy:1:19"
    said, card = done(machine, "on", f"make:{ONE},0,1", FAKE_GPU_FAIL=failing)
    assert "Insufficient Resources" in said[1]
    assert [(each["id"], each["compute"]) for each in card["mig_instances"]] == [(7, [])]
    said, card = done(machine, "end:7")
    assert (said, card["mig_instances"]) == ([None], [])


def test_an_instance_that_is_in_use_a_moment_longer_goes_at_the_next_try(machine: Path) -> None:
    """Its compute instance is gone by then (NVIDIA/go-nvml#146)."""
    said, card = done(machine, "on", f"make:{ONE},0,1", "end:7", "end:7", FAKE_GPU_FAIL="nvmlGpuInstanceDestroy:1:19")
    assert "in use" in str(said[2]).lower()
    assert said[3] is None
    assert card["mig_instances"] == []


def test_a_process_killed_between_the_halves_leaves_one_that_can_be_taken_away(machine: Path) -> None:
    ended = process(machine, "on", f"make:{ONE},0,1", FAKE_GPU_KILL="nvmlGpuInstanceCreateComputeInstance:1")
    assert ended.returncode == -9
    _, card = done(machine)
    assert [(each["id"], each["compute"]) for each in card["mig_instances"]] == [(7, [])]
    _, card = done(machine, "end:7")
    assert card["mig_instances"] == []


def test_a_card_that_needs_a_reset_keeps_its_mode(machine: Path) -> None:
    said, card = done(machine, "on", FAKE_MIG_NEEDS_RESET="1")
    assert said == ["MIG mode of GPU-a stays off: GPU requires restart; the card needs a reset"]
    assert not card["mig_enabled"]


def test_a_mode_that_waits_for_a_reset_is_taken_back(machine: Path) -> None:
    """Somebody else asked for MIG; the card shall not change at its next reset while it is shared."""
    said, card = done(machine, "off", FAKE_MIG_NEEDS_RESET="1", FAKE_MIG_PENDING="on")
    assert said == [None]
    assert not card["mig_enabled"]


def test_without_the_right_to_administer_the_devices_are_seen(machine: Path) -> None:
    """Code 4 is NVML_ERROR_NO_PERMISSION: what a container without CAP_SYS_ADMIN is told."""
    done(machine, "on", f"make:{THREE},4,4", f"make:{ONE},0,1")
    _, card = done(machine, FAKE_GPU_FAIL="nvmlDeviceGetGpuInstances:0:4")
    found = [(each["id"], each["profile"], each["slices"], each["memory_mib"]) for each in card["mig_instances"]]
    assert found == [(2, THREE, 3, 20096), (7, ONE, 1, 4864)]
    assert [each["compute"][0]["uuid"] for each in card["mig_instances"]] == ["MIG-GPU-a-2-0", "MIG-GPU-a-7-0"]
    assert [each["compute"][0]["slices"] for each in card["mig_instances"]] == [3, 1]


def test_what_cannot_be_asked_for_processes_may_be_in_use(machine: Path) -> None:
    done(machine, "on", f"make:{ONE},0,1")
    said, _ = done(machine, "processes", FAKE_GPU_FAIL="nvmlDeviceGetComputeRunningProcesses:2:999")
    assert said == [[{"uuid": "MIG-GPU-a-7-0", "pid": 0, "memory_bytes": 0}]]


def test_a_lost_card_hides_no_processes_of_others(machine: Path) -> None:
    """The first handle is that of card 0; the script asks nothing before."""
    said, _ = done(machine, "processes", FAKE_GPU_FAIL="nvmlDeviceGetHandleByIndex_v2:1:15")
    assert said == [[]]
