"""Command-line flags of a process from one table: name, environment, default, meaning.

Accepts what klog and pflag users write: `-v=4`, `--flag=value`, `--flag value`, `--flag` and `--flag=false` for
switches. An unknown flag is refused with the nearest known one. Flags of upstream's binaries that have no meaning here
are accepted and named at start (design 1).
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from hami.core.errors import ConfigError

_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_A_DURATION: Final = "expected a duration as 5m, 30s or 250ms"
_LONGEST_S: Final = 292 * 365 * 24 * 3600.0
_MOST_SHOWN_CHARS: Final = 200


class Flag(msgspec.Struct, frozen=True):
    """One flag. `parse` turns its text into a value and raises ValueError with what is allowed."""

    name: str
    help: str
    default: Any
    parse: Callable[[str], Any] = str
    env: str = ""
    repeatable: bool = False
    switch: bool = False
    aliases: tuple[str, ...] = ()
    metavar: str = "VALUE"


def boolean(text: str) -> bool:
    """Go's ParseBool words."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError("expected true or false")


def duration_s(text: str) -> float:
    """A Go duration (`5m`, `1m30s`, `250ms`, a bare `0`) in seconds, at most 292 years as Go's."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    parts = _DURATION_PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise ValueError(_A_DURATION)
    total = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if total > _LONGEST_S:
        raise ValueError(f"{_A_DURATION}, at most {go_duration(_LONGEST_S)}")
    return total


def longer_than(minimum_s: float) -> Callable[[str], float]:
    """A duration of at least so many seconds, where a shorter one would keep a processor busy or expire at once."""

    def parse(text: str) -> float:
        value = duration_s(text)
        if value < minimum_s:
            raise ValueError(f"{_A_DURATION}, at least {go_duration(minimum_s)}")
        return value

    return parse


def go_duration(seconds: float) -> str:
    """Seconds as a person writes them for `duration_s`: `5m`, `1m30s`, `250ms`, `0`."""
    thousandths = round(seconds * 1000)
    words = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, thousandths = divmod(thousandths, size)
        words += [f"{count}{unit}"] if count else []
    return "".join(words) or "0"


def some(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise ValueError("expected a value that is not empty")
    return text


def whole(minimum: int, maximum: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        value = int(text) if _WHOLE.fullmatch(text) else minimum - 1
        if not minimum <= value <= maximum:
            raise ValueError(f"expected a whole number from {minimum} to {maximum}")
        return value

    return parse


def number(minimum: float, maximum: float) -> Callable[[str], float]:
    """A number within bounds."""

    def parse(text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else float("nan")
        if not minimum <= value <= maximum:
            raise ValueError(f"expected a number from {minimum:g} to {maximum:g}")
        return value

    return parse


class Choice:
    """One of a few words; the refusal suggests the nearest, and --help lists them."""

    __slots__ = ("allowed",)

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __call__(self, text: str) -> str:
        if text not in self.allowed:
            near = difflib.get_close_matches(text[:_MOST_SHOWN_CHARS], self.allowed, 1)
            raise ValueError(f"expected {' or '.join(self.allowed)}" + (f"; did you mean {near[0]}?" if near else ""))
        return text


def folder(text: str) -> str:
    """A folder of this machine as an absolute path: it is also told to kubelet and to containers, which have their own
    working folder."""
    if not text.strip() or "\0" in text:
        raise ValueError("expected a folder")
    return str(Path(text).absolute())


def absolute(text: str) -> str:
    """A path on the host or in a container, which this process may not see. An empty text stays empty."""
    if text and (not text.startswith("/") or "\0" in text):
        raise ValueError("expected an absolute path, or nothing")
    return text


def labels(text: str) -> tuple[tuple[str, str], ...]:
    """Labels that an object must carry: `key=value,key2=value2`."""
    pairs = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError("expected key=value,key2=value2")
        pairs.append((key, value))
    return tuple(pairs)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(
    program: str,
    description: str,
    flags: Sequence[Flag],
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    ignored: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Values by flag name (dashes and dots become underscores), and the ignored flags that were given.

    Precedence: command line, environment, default. Raises ConfigError naming flag, value and what is allowed;
    exits 0 after printing for --help.
    """
    parser = _build_parser(program, description, flags, ignored)
    arguments, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ConfigError(_unknown(unknown[0], [flag.name for flag in flags]))
    given = vars(arguments)
    values = {flag.name.replace("-", "_"): _value(flag, given[_dest(flag.name)], environment) for flag in flags}
    return values, [name for name in ignored if given[_dest(name)] is not None]


def _build_parser(program: str, description: str, flags: Sequence[Flag], ignored: Sequence[str]) -> _Parser:
    parser = _Parser(prog=program, description=description, allow_abbrev=False, add_help=True)
    for flag in flags:
        dashes = ["-v", "--v"] if flag.name == "v" else [f"--{name}" for name in (flag.name, *flag.aliases)]
        shown = "" if flag.default in (None, "", ()) else f" (default {_default(flag)})"
        from_env = f" [env {flag.env}]" if flag.env else ""
        text = (flag.help + shown + from_env).replace("%", "%%")
        if flag.switch:
            parser.add_argument(*dashes, dest=_dest(flag.name), nargs="?", const="true", metavar="BOOL", help=text)
        elif flag.repeatable:
            parser.add_argument(*dashes, dest=_dest(flag.name), action="append", metavar=_metavar(flag), help=text)
        else:
            parser.add_argument(*dashes, dest=_dest(flag.name), metavar=_metavar(flag), help=text)
    for name in ignored:
        parser.add_argument(f"--{name}", dest=_dest(name), nargs="?", const="", help=argparse.SUPPRESS)
    return parser


def _default(flag: Flag) -> str:
    """The default as a person would write it on the command line."""
    value = flag.default
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return go_duration(value) if flag.metavar == "DURATION" else f"{value:g}"
    return str(value)


def _metavar(flag: Flag) -> str:
    return "|".join(flag.parse.allowed) if isinstance(flag.parse, Choice) else flag.metavar


def _dest(name: str) -> str:
    return "flag_" + name.replace("-", "_")


def _value(flag: Flag, given: Any, environment: Mapping[str, str]) -> Any:
    if given is None and flag.env and environment.get(flag.env, "") != "":
        return _parsed(flag, environment[flag.env], f"{flag.env} (environment)")
    if given is None:
        return flag.default
    if flag.repeatable:
        return tuple(_parsed(flag, text, f"--{flag.name}") for text in given)
    return _parsed(flag, given, f"--{flag.name}")


def _parsed(flag: Flag, text: str, where: str) -> Any:
    try:
        return flag.parse(text.removeprefix("=") if flag.name == "v" else text)
    except ValueError as error:
        shown = text if len(text) <= _MOST_SHOWN_CHARS else f"{text[:_MOST_SHOWN_CHARS]}…"
        raise ConfigError(f"{where}: {shown!r} is not allowed: {error}") from error


def _unknown(argument: str, names: Sequence[str]) -> str:
    name = argument.lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name[:_MOST_SHOWN_CHARS], names, 1)
    shown = argument if len(argument) <= _MOST_SHOWN_CHARS else f"{argument[:_MOST_SHOWN_CHARS]}…"
    return f"unknown argument {shown!r}" + (f"; did you mean --{near[0]}?" if near else "; --help lists the flags")


def environment() -> Mapping[str, str]:
    """The process's environment, read here and nowhere else."""
    return os.environ
