"""`hami` and `kubectl hami`: picks the command and starts its composition root.

Commands import nothing of each other, so that `hami certs create` does not pay for the scheduler's imports.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hami import __version__
from hami.core.errors import ConfigError, HamiError

COMMANDS: Final = {
    "scheduler": ("hami.apps.scheduler", "webhook and kube-scheduler extender"),
    "device-plugin": ("hami.apps.device_plugin", "kubelet device plugin of a GPU node"),
    "monitor": ("hami.apps.monitor", "metrics of a GPU node and its containers, feedback by priority"),
    "certs": ("hami.apps.certs", "certificates of webhook and extender: create, patch"),
    "explain": ("hami.apps.explain", "why a pod fits or not, card by card, and what would help"),
    "doctor": ("hami.apps.doctor", "what is wrong with sharing in a cluster, and what to do"),
    "dev": ("hami.apps.dev", "helpers for development: scheduler-config"),
    "demo": ("hami.apps.demo", "three simulated GPU nodes, eleven pods and their stories, on this machine"),
}
KUBECTL_COMMANDS: Final = ("demo", "explain", "doctor")
DAEMONS: Final = ("scheduler", "device-plugin", "monitor")
ANSWERING: Final = ("explain", "doctor")
"""Their exit status 1 is an answer: what went wrong is 2."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `hami`."""
    sys.exit(run("hami", sys.argv[1:] if argv is None else argv))


def main_kubectl(argv: Sequence[str] | None = None) -> None:
    """Entry point of `kubectl-hami`, which kubectl runs for `kubectl hami`."""
    sys.exit(run("kubectl hami", sys.argv[1:] if argv is None else argv))


def run(program: str, argv: Sequence[str]) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed, 2 used or configured wrongly, 130 Ctrl-C, 141
    the reader of our output has left."""
    _furnish()
    try:
        return _run(program, argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has left; Python would complain once more when it flushes at exit.
        _no_more_output()
        return 141
    except OSError as error:
        command = argv[0] if argv else ""
        if command in DAEMONS:
            raise  # the log shall show where
        _no_more_output()
        _say(f"{program} {command}: {error}")
        return 2 if command in ANSWERING else 1


def _run(program: str, argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage(program), flush=True)
        return 0 if argv else 2
    command, rest = argv[0], argv[1:]
    if command in ("--version", "version"):
        print(f"hami {__version__}", flush=True)
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known commands are {', '.join(_shown(program))}"
        _say(f"{program}: unknown command {command!r}: {hint}")
        return 2
    try:
        status: int = importlib.import_module(COMMANDS[command][0]).main(rest)
        if command not in DAEMONS:
            print(end="", flush=True)
    except HamiError as error:
        _say(f"{program} {command}: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    return status


def _furnish() -> None:
    """What every process takes for granted: three standard streams and a home.

    A stream that the caller closed leads nowhere, for else the next file that is opened would have its number, and what
    a library writes to it. A user whom the machine does not know lives in /, as in a container.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _lead_nowhere(number)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _say(message: str) -> None:
    """To standard error; where that is full the exit status still says how it ended."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _lead_nowhere(sys.stderr.fileno())


def _no_more_output() -> None:
    _lead_nowhere(sys.stdout.fileno())


def _shown(program: str) -> tuple[str, ...]:
    """kubectl's users are people: they are shown what is for people."""
    return KUBECTL_COMMANDS if program == "kubectl hami" else tuple(COMMANDS)


def _usage(program: str) -> str:
    width = max(len(name) for name in _shown(program))
    lines = [f"usage: {program} COMMAND [FLAGS]", "", "GPU sharing for Kubernetes.", "", "commands:"]
    lines += [f"  {name:<{width}}  {what}" for name in _shown(program) for what in COMMANDS[name][1:]]
    lines += ["", f"{program} COMMAND --help lists the flags of a command; {program} --version prints the version."]
    return "\n".join(lines)
