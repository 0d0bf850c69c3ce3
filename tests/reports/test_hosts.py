"""Hosts that are short of something: reports on plugins that did not start there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NO_INOTIFY = "echo 0 > /proc/sys/user/max_inotify_instances && "
FOLLOW = """
import asyncio, sys
from pathlib import Path
from hami.apps.runtime import folder_changes

async def follow():
    folder = Path(sys.argv[1])
    async with asyncio.timeout(60):
        async for _ in folder_changes(folder, poll_s=0.05):
            text = (folder / "config").read_text()
            print(text, flush=True)
            if text == "new":
                return
            fresh = folder / "..fresh"
            fresh.mkdir(exist_ok=True)
            (fresh / "config").write_text("new")
            (folder / "..swap").symlink_to("..fresh")
            (folder / "..swap").replace(folder / "..data")

asyncio.run(follow())
"""


def test_without_inotify_files_are_still_followed(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: the file leads through `..data`, which is swapped."""
    (tmp_path / "..old").mkdir()
    (tmp_path / "..old/config").write_text("old")
    (tmp_path / "..data").symlink_to("..old")
    (tmp_path / "config").symlink_to("..data/config")
    command = f'{NO_INOTIFY} exec "$0" -c "$1" "$2"'
    arguments = ["unshare", "-Ur", "sh", "-c", command, sys.executable, FOLLOW, str(tmp_path)]
    try:
        subprocess.run([*arguments[:4], NO_INOTIFY + "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no user namespaces here: {error}")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "looked at now and then" in done.stdout
    assert [line for line in done.stdout.splitlines() if line in ("old", "new")] == ["old", "new"]
