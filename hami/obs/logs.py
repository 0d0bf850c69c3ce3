"""Logging set-up: constant messages with key/value pairs; klog verbosities decide what is shown.

0 warnings and lifecycle, 3 decisions, 4 per-node reasons, 5 per-card, 6 wire bodies (spec/ecosystem 2.4).
"""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

DECISIONS: Final = 3

_verbosity = DECISIONS


def wants(level: int) -> bool:
    """Whether this verbosity is shown; hot paths ask before they build a log line."""
    return _verbosity >= level


def configure(verbosity: int, *, colour: bool | None = None) -> None:
    """Sets the process's logs up: readable on a terminal, one JSON object a line otherwise."""
    global _verbosity
    _verbosity = verbosity
    level = logging.INFO if verbosity < 5 else logging.DEBUG
    terminal = sys.stderr.isatty() if colour is None else colour
    renderer: structlog.typing.Processor
    renderer = structlog.dev.ConsoleRenderer(colors=True) if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
