"""A container to run test programs in, on a machine with stand-in cards, with the shim or without."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """One stand-in card (tests/shim/fake/card.h lists the keys)."""

    uuid: str
    memory_mib: int = 16384
    context_kib: int = 0
    module_kib: int = 0
    reserved_mib: int = 0
    more: str = ""

    def line(self) -> str:
        """The card's statement in the configuration file of the stand-in libraries."""
        return (
            f"card uuid={self.uuid} memory_mib={self.memory_mib} context_kib={self.context_kib}"
            f" module_kib={self.module_kib} reserved_mib={self.reserved_mib} {self.more}\n"
        )


def card(index: int, **facts: Any) -> Card:
    """A card with a UUID of its own; other facts as in `Card`."""
    facts.setdefault("more", f"name=NVIDIA_A100-PCIE-40GB pci=00000000:{index + 0x3B:02X}:00.0 minor={index}")
    return Card(f"GPU-{index:08x}-1111-4222-8333-444444444444", **facts)


@dataclass(slots=True)
class Machine:
    """Stand-in cards that all processes started through it share."""

    folder: Path
    fakes: Path
    cards: tuple[Card, ...]
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.folder / "cards.conf"
        self.config.write_text("".join(card.line() for card in self.cards))


@dataclass(slots=True)
class Container:
    """A container as Allocate makes it: its environment, the folder of its region, the preloaded shim."""

    machine: Machine
    shim: Path
    region: Path
    env: dict[str, str]
    cuda: str = "12.4"

    def environment(self, *, shim: bool = True, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """What a process in the container starts with; None in `extra` takes a variable away."""
        env = {
            "PATH": os.environ.get("PATH", ""),
            "LD_LIBRARY_PATH": str(self.machine.fakes / "driver" / self.cuda),
            "FAKE_GPU_CONFIG": str(self.machine.config),
            **self.env,
        }
        if shim:
            env["LD_PRELOAD"] = str(self.shim / "libvgpu.so")
        for name, value in (extra or {}).items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        return env

    def program(self, name: str) -> str:
        """Path of a test program."""
        return str(self.machine.fakes / "bin" / name)

    def run(
        self,
        program: str | Sequence[str],
        *arguments: object,
        shim: bool = True,
        extra: Mapping[str, str | None] | None = None,
        timeout_s: float = 240,
        text_in: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a test program (a name) or any command (a list) to its end."""
        command = [self.program(program)] if isinstance(program, str) else list(program)
        return subprocess.run(
            [*command, *map(str, arguments)],
            env=self.environment(shim=shim, extra=extra),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            input=text_in,
            check=False,
        )

    def start(
        self, program: str, *arguments: object, shim: bool = True, extra: Mapping[str, str | None] | None = None
    ) -> subprocess.Popen[str]:
        """Start a test program and leave it running."""
        return subprocess.Popen(
            [self.program(program), *map(str, arguments)],
            env=self.environment(shim=shim, extra=extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def holding(
        self, mib: int, *, shim: bool = True, extra: Mapping[str, str | None] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """In the block a process holds so much; where nobody killed it, it then gives it back and ends."""
        holder = self.start("test_alloc_hold", mib, shim=shim, extra=extra)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline().startswith("held")
            yield holder
            if holder.poll() is None:
                holder.communicate("", timeout=240)
        finally:
            kill([holder])


def json_lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The lines of JSON that a program printed; fails with its whole output when it did not end well."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def used_values(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """`before`, `held`, `after` → bytes, as the programs print them."""
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+) used=(\d+)", done.stdout, re.MULTILINE)}


def kill(processes: Iterable[subprocess.Popen[str]]) -> None:
    """End processes that a test started, at once and for certain."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
