"""Fuzz targets over what the limiter reads from outside: settings, and the region file. 20 s each in CI, 10 minutes in
`make soak` (issue 9, "Proof without a GPU"). The seed is printed: the same seed makes the same damage."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.shim import harness
from tests.shim.conftest import absent
from tests.shim.harness import SOAK

SECONDS = 600 if SOAK else 20


@pytest.mark.parametrize("target", ["fuzz_config", "fuzz_region"])
def test_damage_is_survived(target: str, tmp_path: Path) -> None:
    if harness.compiler() is None:
        absent("no C compiler: the shim cannot be built or tested here")
    seed = random.SystemRandom().randrange(2**48)
    command = [str(harness.build_unit(target)), str(SECONDS), str(seed), str(tmp_path / "region.cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 200, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-500:]} {done.stderr[-4000:]}"
    word, rounds = done.stdout.split()
    assert (word, int(rounds) > 100) == ("well", True), f"seed {seed}: {done.stdout}"
