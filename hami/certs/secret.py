"""Keeps the serving certificate in a Secret, so that all schedulers of a release serve the same one.

Whoever writes first wins; who comes at the same time takes what the first one wrote (issue 8). The authority's key is
thrown away: a renewal makes a new authority.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from hami.certs import kept
from hami.certs.kept import Kept
from hami.certs.make import CertificatePair
from hami.certs.publish import Request
from hami.core.errors import CertificateError, ConflictError, NotFoundError
from hami.core.lenient import decode_answer

MERGE_PATCH: Final = "application/merge-patch+json"
_TRIES: Final = 5

Next = Callable[[Kept], Kept | None]
"""The state to write for the state that was found; None where it is good as it is."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


_decoder: Final = msgspec.json.Decoder(_Secret)


class KeptSecret:
    """One Secret by name."""

    def __init__(self, request: Request, namespace: str, name: str) -> None:
        self._request = request
        self._namespace = namespace
        self._name = name

    @property
    def title(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def read(self) -> Kept | None:
        """None where the Secret does not exist. Raises ApiError, TransportError."""
        found = await self._read()
        return kept.from_data(found.data) if found is not None else None

    async def advance(self, next_state: Next) -> Kept:
        """Writes what `next_state` wants for the state that is there, and returns the state that is there then.

        The write holds only for the state that was read; another replica's write in between is looked at anew. The
        Secret is made where it is missing. Raises CertificateError, ApiError, TransportError.
        """
        for _ in range(_TRIES):
            found = await self._read()
            state = kept.from_data(found.data if found is not None else None)
            wanted = next_state(state)
            if wanted is None:
                return state
            try:
                await self._write(wanted, found)
            except ConflictError:
                continue
            return wanted
        raise CertificateError(f"{self.title} changed at every try to write it")

    async def _read(self) -> _Secret | None:
        path = self._path(self._name)
        try:
            return decode_answer(await self._request("GET", path), _decoder, path)
        except NotFoundError:
            return None

    async def _write(self, wanted: Kept, found: _Secret | None) -> None:
        data = kept.to_data(wanted)
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if found is None:
            there = {file: text for file, text in data.items() if text is not None}
            body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": there}
            await self._request("POST", self._path(), msgspec.json.encode(body))
            return
        patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "data": data}
        await self._request("PATCH", self._path(self._name), msgspec.json.encode(patch), MERGE_PATCH)

    def _path(self, name: str = "") -> str:
        path = f"/api/v1/namespaces/{quote(self._namespace, safe='')}/secrets"
        return f"{path}/{quote(name, safe='')}" if name else path


async def ensure_pair(
    request: Request, namespace: str, name: str, hosts: Sequence[str], now: datetime.datetime, days: int
) -> CertificatePair:
    """For `hami certs create --secret`: the pair in the Secret, made anew at once where it is missing or due.

    `ca_pem` has every authority to trust; `ca_key_pem` is empty. Raises CertificateError, ApiError, TransportError.
    """

    def fresh(state: Kept) -> Kept | None:
        if not kept.is_due(state, hosts, now):
            return None
        return kept.make_first(hosts, now, days, state.trusted)

    state = await KeptSecret(request, namespace, name).advance(fresh)
    return CertificatePair(state.trusted, b"", state.cert, state.key)
