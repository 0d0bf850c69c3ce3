"""`make cluster-up` and `make cluster-down`: the tests' cluster for a person, in the background.

    python -m tests.helm.up up [PROFILE]      prints the path of a kubeconfig
    python -m tests.helm.up down              ends it; nothing is left

The cluster lives in namespaces of its own (tests.node.namespace). Its API server is reached through a Unix socket,
which the keeper, the only process outside, offers on a free port of 127.0.0.1. When the keeper ends, all ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from scripts.buildah import cache
from tests.cluster.processes import NotReadyError, wait_until
from tests.helm import node, prepare
from tests.helm.cluster import NAMESPACE, PROFILE
from tests.helm.release import install
from tests.helm.tenant import write_cards

START_LIMIT_S: Final = 300
STOP_LIMIT_S: Final = 60
LINES_SHOWN: Final = 20


class Place:
    """Files of the cluster, below HAMI_CACHE."""

    def __init__(self) -> None:
        self.folder = cache() / "cluster"
        self.pid = self.folder / "keeper.pid"
        self.log = self.folder / "cluster.log"
        self.socket = self.folder / "api.sock"
        self.inside = self.folder / "inside.kubeconfig"
        """Written when all is installed: what works inside of the namespaces."""
        self.kubeconfig = self.folder / "kubeconfig"

    def keeper(self) -> int | None:
        """Pid of the running keeper. A number that was given to another process since is not ours."""
        with contextlib.suppress(OSError, ValueError):
            pid, started = self.pid.read_text().split()
            if _started(int(pid)) == started:
                return int(pid)
        return None


def up(profile: str) -> int:
    """Starts the cluster unless it runs, and says how to use it."""
    place = Place()
    if place.keeper() is None:
        if prepare.main() != 0:
            return 1
        down()
        place.folder.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.helm.up", "keep", profile]
        with place.log.open("ab") as log:
            keeper = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        place.pid.write_text(f"{keeper.pid} {_started(keeper.pid)}")
        try:
            wait_until(
                lambda: place.kubeconfig.exists() or keeper.poll() is not None, START_LIMIT_S, "the cluster up", 0.2
            )
        except NotReadyError as error:
            print(error, file=sys.stderr)
        if not place.kubeconfig.exists():
            print("\n".join(place.log.read_text().splitlines()[-LINES_SHOWN:]), file=sys.stderr)
            down()
            return 1
    print(f"export KUBECONFIG={place.kubeconfig}")
    print(
        f"# one node with simulated cards; HAMi in namespace {NAMESPACE}; `make cluster-down` ends it", file=sys.stderr
    )
    return 0


def down() -> int:
    """Ends the cluster and removes its files."""
    place = Place()
    pid = place.keeper()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT_S
        while place.keeper() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if place.keeper() is not None:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(place.folder, ignore_errors=True)
    node.remove_host_folders()
    return 0


async def keep(profile: str) -> int:
    """The process outside: runs the cluster in its namespaces, and forwards a port to it."""
    place = Place()
    tied = ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "tests.node.namespace"]
    cluster = await asyncio.create_subprocess_exec(*tied, sys.executable, "-m", "tests.helm.up", "inside", profile)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cluster.terminate)
    server = await asyncio.start_server(lambda r, w: _forward(r, w, place), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        publishing = asyncio.create_task(_publish(place, port))
        status = await cluster.wait()
        publishing.cancel()
    return status


async def _publish(place: Place, port: int) -> None:
    while not place.inside.exists():  # noqa: ASYNC110, another process makes it
        await asyncio.sleep(0.1)
    config = yaml.safe_load(place.inside.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    part = place.kubeconfig.with_suffix(".part")
    part.touch(0o600)
    part.write_text(yaml.safe_dump(config))
    part.replace(place.kubeconfig)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place) -> None:
    try:
        there, back = await asyncio.open_unix_connection(place.socket)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


def inside(profile: str) -> int:
    """The cluster itself, in its namespaces, until they end."""
    place = Place()
    with node.running(place.folder / "node") as machine:
        install(machine.user, "install", f"--set=devicePlugin.simulate={profile}")
        write_cards(machine.cards, machine.user.cards())
        part = place.inside.with_suffix(".part")
        shutil.copy(machine.user.kubeconfig, part)
        part.replace(place.inside)
        asyncio.run(_serve_socket(place.socket, machine.node.plane.ports.apiserver))
    return 1


async def _serve_socket(socket: Path, port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    async with await asyncio.start_unix_server(connect, socket) as server:
        await server.serve_forever()


def _started(pid: int) -> str:
    """When the process began, in clock ticks since boot; a number and this name one process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def main(arguments: Sequence[str]) -> int:
    """Command line."""
    verb, profile = (*arguments, "", "")[:2]
    match verb:
        case "up":
            return up(profile or PROFILE)
        case "down":
            return down()
        case "keep":
            return asyncio.run(keep(profile))
        case "inside":
            return inside(profile)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
