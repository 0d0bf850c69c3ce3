"""A bare session to kube-apiserver for a library that makes its own requests (kopf in `hami.controllers`)."""

from __future__ import annotations

import aiohttp

from hami import __version__
from hami.kube.access import load_access


async def open_session(kubeconfig: str | None) -> tuple[str, aiohttp.ClientSession]:
    """The server's address and a session of the running loop, which its caller closes.

    Each request carries the credentials as they are then: tokens of service accounts change every hour.
    Raises ConfigError.
    """
    access = await load_access(kubeconfig)

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        authorization = await access.authorization()
        if authorization:
            request.headers["Authorization"] = authorization
        if access.tls_server_name:
            request.server_hostname = access.tls_server_name
        return await handler(request)

    session = aiohttp.ClientSession(
        # No pool: a pooled connection whose peer vanished costs a whole time limit, and lists are rare.
        connector=aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"hami/{__version__}", "Accept-Encoding": "identity"},
        proxy=access.proxy,
        middlewares=(authorize,),
    )
    return access.server, session
