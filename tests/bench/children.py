"""Child processes of the benchmark: each prints one JSON line when it is ready and ends when its input closes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Child:
    """A running child and what its first line said."""

    facts: dict[str, Any]
    _process: subprocess.Popen[bytes]

    def ask(self) -> dict[str, Any]:
        """Sends an empty line; returns what the child says to it. Raises RuntimeError if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return _line(self._process)


@contextlib.contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """`python -m tests.bench.MODULE` for the length of the block. Raises RuntimeError if it ends before it is ready."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Child(_line(process), process)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    told: dict[str, Any] = json.loads(line)
    return told
