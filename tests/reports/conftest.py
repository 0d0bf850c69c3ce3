"""A client for the API server stand-in that a test starts."""

from __future__ import annotations

from tests.tools.api_server import client

__all__ = ["client"]
