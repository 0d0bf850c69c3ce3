"""Child processes that die with their parent, free ports, and waiting without fixed sleeps."""

from __future__ import annotations

import http.client
import itertools
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
POLL_INTERVAL_S = 0.05
PATIENCE_S = 240.0
"""The shortest time limit of a wait. A limit ends a hang and says nothing about speed: how long something took is a
figure that is printed, and no machine is too slow or too busy for these tests."""
LOWEST_PORT = 10240


class NotYetError(Exception):
    """A call that failed and may succeed when it is tried again; a probe may raise it."""


NOT_YET = (NotYetError, OSError, http.client.HTTPException, AssertionError, LookupError, ValueError)


class NotReadyError(Exception):
    """Something did not become true before its deadline, or a process ended early; the text carries its log's end."""


def wait_until(probe: Callable[[], T], timeout_s: float, what: str, interval_s: float = POLL_INTERVAL_S) -> T:
    """Call `probe` until it returns something true and return that.

    Exceptions of `probe` that mean "not yet" are kept for the error text: a call that failed (NotYetError, OSError,
    HTTPException), an AssertionError, and what reading a field or text that is not there yet raises (LookupError,
    ValueError).
    Raises NotReadyError after `timeout_s`, but not before `PATIENCE_S`.
    """
    timeout_s = max(timeout_s, PATIENCE_S)
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            last = probe()
            if last:
                return last
        except NOT_YET as error:
            last = repr(error) if isinstance(error, LookupError) else error
        if time.monotonic() >= deadline:
            raise NotReadyError(f"{what}: not so after {timeout_s:.0f} s; last seen: {last!s:.2000}")
        time.sleep(interval_s)


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports on 127.0.0.1 that nobody listens on and no other test is given while we live.

    They lie below those that the kernel gives to outgoing connections and to port 0: what is picked here is listened on
    later, and again after each kill, and must not be a client's meanwhile.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(LOWEST_PORT, lowest))
    random.shuffle(candidates)
    found = list(itertools.islice(filter(_claim, candidates), count))
    assert len(found) == count, f"{count} free ports wanted between {LOWEST_PORT} and {lowest}, found {found}"
    return found


def _claim(port: int) -> bool:
    """Whether the port is free and now ours: the name of an abstract socket says so to other test processes in this
    network namespace, until we end."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0hami-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    claim.detach()  # stays open
    return True


class Process:
    """One child, tied to this process: the kernel kills it when we die, however we die.

    `setpriv --pdeathsig` sets that up after fork without running Python in the child. The tie is to the *thread*
    that starts the child, so children are started on the main thread only; killing is allowed from any thread.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self.env = env
        self.starts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        return self._child.pid if self.alive and self._child is not None else None

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        with self._lock:
            return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the child; its output is appended to the log."""
        assert threading.current_thread() is threading.main_thread(), "children must not die with a worker thread"
        assert not self.alive, f"{self.name} runs already"
        self.starts += 1
        tied = ["setpriv", "--pdeathsig", "KILL", "--", *self.command]
        # Held meanwhile, so that whoever kills a child that already works, kills this one.
        with self.log.open("ab") as log, self._lock:
            log.write(f"--- start {self.starts}: {' '.join(self.command)}\n".encode())
            log.flush()
            self._child = subprocess.Popen(
                tied, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, start_new_session=True
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the child still runs."""
        self._signalled(number)

    def _signalled(self, number: int) -> subprocess.Popen[bytes] | None:
        """The child that was sent the signal, if it still ran; another thread may start the next one meanwhile."""
        with self._lock:
            child = self._child
            if child is not None and child.poll() is None:
                child.send_signal(number)
            return child

    def kill(self) -> None:
        """SIGKILL and wait: afterwards the child does nothing any more. Raises NotReadyError when it does not go."""
        child = self._signalled(signal.SIGKILL)
        if not _ended(child, PATIENCE_S):
            raise NotReadyError(f"{self.name} was killed and is still there after {PATIENCE_S:.0f} s")

    def stop(self, timeout_s: float = PATIENCE_S) -> int | None:
        """SIGTERM, then SIGKILL at the deadline; returns the exit code."""
        child = self._signalled(signal.SIGTERM)
        if not _ended(child, timeout_s):
            self.kill()
        return child.returncode if child is not None else None

    def restart(self) -> None:
        """Kill the child if it runs and start it anew."""
        self.kill()
        self.start()

    def require_alive(self) -> bool:
        """True, or NotReadyError with the end of the log: a probe's way to fail early."""
        if not self.alive:
            code = self._child.returncode if self._child is not None else None
            raise NotReadyError(f"{self.name} ended with code {code}:\n{self.tail()}")
        return True

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        return "\n".join(self.said().splitlines()[-lines:])

    def mark(self) -> int:
        """Where the log ends now; `said` reads from there."""
        return self.log.stat().st_size if self.log.exists() else 0

    def said(self, since: int = 0) -> str:
        """The whole log, all starts together, or what came after a `mark`."""
        return self.log.read_bytes()[since:].decode(errors="replace") if self.log.exists() else ""


def _ended(child: subprocess.Popen[bytes] | None, timeout_s: float) -> bool:
    """Wait for this very child: another thread may start the next one as soon as it is gone."""
    deadline = time.monotonic() + timeout_s
    while child is not None and child.poll() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def missing_tools() -> str | None:
    """Which small programs of the operating system are missing, in words; None when all are there."""
    absent = [tool for tool in ("setpriv", "unshare") if shutil.which(tool) is None]
    return f"{', '.join(absent)} not found: install util-linux" if absent else None
