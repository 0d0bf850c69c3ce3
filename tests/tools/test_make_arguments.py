"""Arguments of `make control-plane` and `make scenarios`: a wrong value is told before anything is started."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((["--nodes", text], "expected a whole number from 1 to 200")
          for text in ("0", "-1", "201", "99999999999", "x", "", "1e2", "٣")),
        (["--profile", "nope"], "known names are a10, a100"),
        (["--profile", ""], "known names are a10, a100"),
        (["--profile", "a100,,t4"], "known names are a10, a100"),
        (["--profle", "a100"], "unrecognized arguments: --profle"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_at_once(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.up", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_no_scenario_is_not_all_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios", "--only", "no such name"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--only 'no such name': no scenario's name contains this\n"
