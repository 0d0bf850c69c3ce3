"""An API server stand-in and a client for it."""

from __future__ import annotations

from tests.tools.api_server import api, client

__all__ = ["api", "client"]
