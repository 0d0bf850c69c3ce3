"""Listeners: a port that is taken is an error at start, and every interface means IPv6, too."""

from __future__ import annotations

import asyncio
import socket
import urllib.request

import pytest

from hami.core.errors import ConfigError
from hami.web import asgi
from hami.web.server import Address, Listener, serving


async def _app(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
    await asgi.answer(send, 200, b"here")


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as reply:
        body: bytes = reply.read()
    return body


async def test_of_two_that_start_together_on_one_port_one_is_told() -> None:
    first = Listener(Address(https=False, host="127.0.0.1", port=0), _app, None)
    async with serving([first]):
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            Listener(Address(https=False, host="127.0.0.1", port=first.port), _app, None)
        assert await asyncio.to_thread(_read, first.url) == b"here"


async def test_every_interface_is_reached_by_both_families() -> None:
    hosts = ["127.0.0.1", *(["[::1]"] if _has_ipv6_loopback() else [])]
    listener = Listener(Address(https=False, host="", port=0), _app, None)
    async with serving([listener]):
        for host in hosts:
            assert await asyncio.to_thread(_read, f"http://{host}:{listener.port}/") == b"here"


@pytest.mark.skipif(not _has_ipv6_loopback(), reason="this machine has no IPv6 loopback")
async def test_an_ipv6_listener_names_a_url_that_works() -> None:
    listener = Listener(Address(https=False, host="::1", port=0), _app, None)
    async with serving([listener]):
        assert await asyncio.to_thread(_read, listener.url) == b"here"
