"""A private registry in memory, on a free port of 127.0.0.1: as much of the OCI protocol as a push needs."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import urllib.parse
import uuid
from types import TracebackType

MANIFEST = re.compile(r"/v2/(.+)/manifests/(.+)")
BLOB = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]+)")
UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/(.*)")


class Registry:
    """Context manager; `address` is host:port, `manifests` holds what was pushed by `repository:tag`."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        registry = self

        class Handler(_Handler):
            store = registry

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Registry

    def do_GET(self) -> None:
        self._answer(200 if self.path.rstrip("/") == "/v2" else 404)

    def do_HEAD(self) -> None:
        found = BLOB.fullmatch(self.path)
        self._answer(200 if found and found[2] in self.store.blobs else 404)

    def do_POST(self) -> None:
        found = UPLOAD.fullmatch(self.path.partition("?")[0])
        upload = uuid.uuid4().hex
        self.store.uploads[upload] = b""
        self._answer(202, {"Location": f"/v2/{found[1] if found else ''}/blobs/uploads/{upload}"})

    def do_PATCH(self) -> None:
        self._append()
        self._answer(202, {"Location": self.path, "Range": "0-0"})

    def do_PUT(self) -> None:
        manifest = MANIFEST.fullmatch(self.path)
        if manifest:
            content = self._body()
            self.store.manifests[f"{manifest[1]}:{manifest[2]}"] = content
            self._answer(201, {"Docker-Content-Digest": f"sha256:{hashlib.sha256(content).hexdigest()}"})
            return
        content = self._append()
        [wanted] = urllib.parse.parse_qs(self.path.partition("?")[2])["digest"]
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != wanted:
            self._answer(400)
            return
        self.store.blobs[wanted] = content
        del self.store.uploads[self.path.partition("?")[0].rpartition("/")[2]]
        self._answer(201, {"Location": self.path})

    def _append(self) -> bytes:
        upload = self.path.partition("?")[0].rpartition("/")[2]
        self.store.uploads[upload] += self._body()
        return self.store.uploads[upload]

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the base class's name
        """Says nothing."""
