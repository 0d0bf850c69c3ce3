"""Logging set-up: constant messages with key/value pairs, by klog verbosity (spec/ecosystem 2.4).

From 3 on each filter decision is logged; what lies above shows no more than that. Why a pod waits: `hami explain`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Final, TextIO, cast

import structlog

DECISIONS: Final = 3

_verbosity = DECISIONS


def wants(level: int) -> bool:
    """Whether this verbosity is shown; hot paths ask before they build a log line."""
    return _verbosity >= level


def configure(verbosity: int) -> None:
    """Sets the process's logs up: readable on a terminal, one JSON object a line otherwise."""
    global _verbosity
    _verbosity = verbosity
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(colors=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Surviving(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")


class _Surviving:
    """Standard error that loses lines where its disk is full or its reader has gone: no decision fails for its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Routed(logging.Handler):
    """Standard log records as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        # Without tracebacks: what fails inside a library is told by our own line with its reason.
        structlog.get_logger(record.name).log(record.levelno, "library", text=record.getMessage())


def route(library: str, *, without: tuple[str, ...] = ()) -> None:
    """A library's warnings come as lines of ours from now on, but for those that contain a text of `without`."""
    logger = logging.getLogger(library)
    if any(isinstance(each, _Routed) for each in logger.handlers):
        return
    handler = _Routed(logging.WARNING)
    handler.addFilter(lambda record: not any(text in record.getMessage() for text in without))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
