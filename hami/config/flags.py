"""Command-line flags of a process from one table: name, environment, default, meaning.

Accepts what klog and pflag users write: `-v=4`, `--flag=value`, `--flag value`, `--flag` and `--flag=false` for
switches. An unknown flag is refused with the nearest known one. Flags of upstream's binaries that have no meaning here
are accepted and named at start (design 1).
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from hami.core.errors import ConfigError

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


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
    """A Go duration (`5m`, `1m30s`, `250ms`, a bare `0`) in seconds."""
    total, rest = 0.0, text.strip()
    if rest == "0":
        return total
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:digits], rest[digits:]
        unit = next((unit for unit in ("ms", "s", "m", "h") if rest.startswith(unit)), "")
        if not number or not unit or number.count(".") > 1:
            raise ValueError("expected a duration as 5m, 30s or 250ms")
        total += float(number) * _UNITS_S[unit]
        rest = rest[len(unit) :]
    if not text.strip():
        raise ValueError("expected a duration as 5m, 30s or 250ms")
    return total


def whole(minimum: int, maximum: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise ValueError(f"expected a whole number from {minimum} to {maximum}")
        return value

    return parse


def number(minimum: float, maximum: float) -> Callable[[str], float]:
    """A number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not minimum <= value <= maximum:
            raise ValueError(f"expected a number from {minimum:g} to {maximum:g}")
        return value

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of a few words; the refusal suggests the nearest."""

    def parse(text: str) -> str:
        if text not in allowed:
            near = difflib.get_close_matches(text, allowed, 1)
            raise ValueError(f"expected {' or '.join(allowed)}" + (f"; did you mean {near[0]}?" if near else ""))
        return text

    return parse


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
        shown = "" if flag.default in (None, "", ()) else f" (default {flag.default})"
        from_env = f" [env {flag.env}]" if flag.env else ""
        text = (flag.help + shown + from_env).replace("%", "%%")
        if flag.switch:
            parser.add_argument(*dashes, dest=_dest(flag.name), nargs="?", const="true", metavar="BOOL", help=text)
        elif flag.repeatable:
            parser.add_argument(*dashes, dest=_dest(flag.name), action="append", metavar=flag.metavar, help=text)
        else:
            parser.add_argument(*dashes, dest=_dest(flag.name), metavar=flag.metavar, help=text)
    for name in ignored:
        parser.add_argument(f"--{name}", dest=_dest(name), nargs="?", const="", help=argparse.SUPPRESS)
    return parser


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
        raise ConfigError(f"{where}: {text!r} is not allowed: {error}") from error


def _unknown(argument: str, names: Sequence[str]) -> str:
    name = argument.lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name, names, 1)
    return f"unknown argument {argument!r}" + (f"; did you mean --{near[0]}?" if near else "; --help lists the flags")


def environment() -> Mapping[str, str]:
    """The process's environment, read here and nowhere else."""
    return os.environ
