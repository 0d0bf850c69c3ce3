"""What our probe says through the real pynvml over the stand-in driver in C (tests/shim/fake), in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.shim.harness import build_fakes

SCRIPT = """
import asyncio, sys
from pathlib import Path
import msgspec
from hami.core.errors import NvmlError
from hami.nvml.real import RealProbe

async def main():
    probe = RealProbe(float(sys.argv[3]), driver_root=Path(sys.argv[1]))
    events = Path(sys.argv[2])
    said = []
    for step in sys.argv[4:]:
        what, _, rest = step.partition(":")
        try:
            if what == "happens":
                with events.open("a") as file:
                    file.write(rest + "\\n")
            elif what == "events":
                said.append(await probe.events(0.05))
            else:
                said.append(await getattr(probe, what)())
        except NvmlError as error:
            said.append(str(error))
    await probe.close()
    print(msgspec.json.encode(said).decode())

asyncio.run(main())
"""


def asked(
    folder: Path, cards: bytes, *steps: str, where: str = "usr/lib64", limit_s: float = 5, **environment: str
) -> list[Any]:
    """What the probe, which gives each call `limit_s`, says to each step; `where` below the driver's root its library
    lies."""
    library = folder / "root" / where / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(build_fakes() / "driver/12.4/libnvidia-ml.so.1")
    config = folder / "cards.conf"
    config.write_bytes(cards)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "root"), f"{config}.state.events", str(limit_s), *steps],
        env={"FAKE_GPU_CONFIG": str(config), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[Any] = json.loads(done.stdout)
    return said
