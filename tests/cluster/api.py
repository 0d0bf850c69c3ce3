"""A small JSON client for kube-apiserver, for polling and for bulk creation; people's commands go through kubectl.

It shares nothing with hami's own client, so that a fault there cannot hide itself here.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.pki import Pair
from tests.cluster.processes import PATIENCE_S, NotYetError

Object = dict[str, Any]
RETRY_S = 0.2
OUT_OF_TIME = (429, 500, 503, 504)
IDLE_S = 30.0
"""kube-apiserver closes connections that were idle for 90 s; a write that meets that fails and may not be repeated."""


class ApiError(NotYetError):
    """kube-apiserver answered with an error status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status = status
        self.body = body

    @property
    def passes(self) -> bool:
        """Whether the server is merely out of time, or etcd behind it: then it may or may not have done it. What a
        webhook did is another matter."""
        return self.status in OUT_OF_TIME and "webhook" not in self.body


class Api:
    """Calls with one identity; one kept connection for each thread."""

    def __init__(self, server: str, ca: Path, pair: Pair) -> None:
        self._netloc = urllib.parse.urlsplit(server).netloc
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(str(pair.cert), str(pair.key))
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close every connection, whichever thread opened it."""
        for connection in self._connections:
            connection.close()

    def get(self, path: str, **query: str) -> Any:
        """GET an object or a list."""
        return self.call("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))

    def items(self, path: str, **query: str) -> list[Object]:
        """GET a list and return its items."""
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def exists(self, path: str) -> bool:
        """True when GET finds the object."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def post(self, path: str, body: Object) -> Any:
        """Create an object."""
        try:
            return self.call("POST", path, body)
        except ApiError as error:
            if not error.passes:
                raise
        return self._post_again(path, body)

    def _post_again(self, path: str, body: Object) -> Any:
        """After a try that may have reached the server."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            time.sleep(RETRY_S)
            try:
                return self.call("POST", path, body)
            except ApiError as error:
                if error.status == http.client.CONFLICT and "name" in body["metadata"]:
                    return self.get(f"{path.partition('?')[0]}/{body['metadata']['name']}")
                if not error.passes or time.monotonic() > deadline:
                    raise

    def merge_patch(self, path: str, body: Object) -> Any:
        """JSON merge patch."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def annotate(self, path: str, annotations: Mapping[str, str | None]) -> Any:
        """Set annotations; None removes one."""
        return self.merge_patch(path, {"metadata": {"annotations": dict(annotations)}})

    def delete(self, path: str, **query: str) -> None:
        """Delete an object or a collection at once (no grace period); a missing one is fine."""
        query = {"gracePeriodSeconds": "0", **query}
        try:
            self.call("DELETE", path + "?" + urllib.parse.urlencode(query))
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def post_all(self, path: str, bodies: Iterable[Object], connections: int = 8) -> None:
        """Create many objects at once over several connections."""
        with ThreadPoolExecutor(connections) as pool:
            for _ in pool.map(lambda body: self.post(path, body), bodies):
                pass

    def call(self, method: str, path: str, body: Object | None = None, content_type: str = "application/json") -> Any:
        """One request, but for a POST again while the server is out of time; decoded JSON back.

        Raises ApiError for an error status, OSError when nothing answers.
        """
        payload = None if body is None else json.dumps(body)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._call_once(method, path, payload, content_type)
            except ApiError as error:
                if method == "POST" or not error.passes or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _call_once(self, method: str, path: str, payload: str | None, content_type: str) -> Any:
        try:
            status, text = self._exchange(method, path, payload, content_type)
        except (http.client.HTTPException, ConnectionError):
            if method != "GET":
                raise
            status, text = self._exchange(method, path, payload, content_type)  # a kept connection went stale
        if status >= http.client.BAD_REQUEST:
            raise ApiError(method, path, status, text)
        return json.loads(text) if text.startswith(("{", "[")) else text

    def _exchange(self, method: str, path: str, payload: str | None, content_type: str) -> tuple[int, str]:
        connection = self._connection()
        try:
            connection.request(method, path, payload, {"Content-Type": content_type, "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._local.connection = None
            raise

    def _connection(self) -> http.client.HTTPSConnection:
        """This thread's connection, opened anew after a pause."""
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        now = time.monotonic()
        if connection is not None and now - self._local.used_s > IDLE_S:
            connection.close()
            connection = None
        if connection is None:
            connection = http.client.HTTPSConnection(self._netloc, context=self._tls, timeout=PATIENCE_S)
            self._local.connection = connection
            self._connections.append(connection)
        self._local.used_s = now
        return connection
