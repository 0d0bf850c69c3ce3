"""A small JSON client for contract tests, and the smallest valid pod."""

from __future__ import annotations

from typing import Any

import aiohttp

MERGE = "application/merge-patch+json"


class Http:
    """Plain HTTP against the server: status and decoded body, nothing hidden."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self.session, self.base_url = session, base_url

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": content_type}
        async with self.session.request(
            method, self.base_url + path, json=body, headers=headers, params=query
        ) as response:
            return response.status, await response.json()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        code, body = await self.call("GET", path, **query)
        assert code == 200, body
        return body

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        code, answer = await self.call("POST", path, body)
        assert code == 201, answer
        return answer

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> dict[str, Any]:
        code, answer = await self.call("PATCH", path, body, content_type)
        assert code == 200, answer
        return answer


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """The smallest valid pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "example/app:1"}], **spec},
    }
