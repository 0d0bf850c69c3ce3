"""The driver's files on the host as CDI specifications describe them, and a stand-in for NVIDIA's hook tool.

The tool writes its words and the container's state, which runc hands it, into a file of its own, and does nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

VERSION = "580.65.06"
LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = tuple(f"{LIBRARY_FOLDER}/{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-ml"))
PROGRAM = "/usr/bin/nvidia-smi"
HOOK = """\
#!/bin/sh
part=$(mktemp {folder}/.XXXXXX)
{{ echo "$*"; cat; }} > "$part"
mv "$part" "{folder}/call${{part##*/}}"
"""
"""It runs among the container's processes, all of which begin to count at 1, and sees the host's files."""


@dataclasses.dataclass(frozen=True, slots=True)
class HookCall:
    """One call of the tool: its words, and the container's state as the OCI runtime specification has it."""

    words: str
    state: dict[str, str]


class HostDriver:
    """A folder with the driver's files (`root`) and the tool (`hook`)."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.hook = folder / "nvidia-cdi-hook"
        self._calls = folder / "calls"
        self._calls.mkdir(parents=True)
        for name in (*LIBRARIES, PROGRAM):
            file = self.root / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{name} of the host\n")
        self.hook.write_text(HOOK.format(folder=self._calls))
        self.hook.chmod(0o755)

    def hook_calls(self) -> list[HookCall]:
        """All calls so far; each was made before its container's program started."""
        texts = [file.read_text().partition("\n") for file in self._calls.iterdir() if not file.name.startswith(".")]
        return [HookCall(words, json.loads(state)) for words, _, state in texts]
