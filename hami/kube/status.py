"""From a failed answer of kube-apiserver to the error tree of `hami.core.errors`."""

from __future__ import annotations

from typing import Final

import msgspec

from hami.core.errors import ApiError, ConflictError, GoneError, InvalidError, NotFoundError

_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
}
_MAX_TEXT_CHARS: Final = 500


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0


class Status(msgspec.Struct, rename="camel"):
    """The fields of a `v1.Status` that say what went wrong."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_status_decoder: Final = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """Reads a Status; a body of another kind (a proxy's page) becomes the message, shortened."""
    try:
        return _status_decoder.decode(body)
    except msgspec.DecodeError:
        return Status(message=body[:_MAX_TEXT_CHARS].decode("utf-8", "replace").strip())


def error_from(http_status: int, body: bytes, retry_after: str = "") -> ApiError:
    """The error for an answer with a failure status; `retry_after` is the header's text, empty if absent."""
    status = decode_status(body)
    return error_of_status(status, http_status, retry_after)


def error_of_status(status: Status, http_status: int = 0, retry_after: str = "") -> ApiError:
    """The error for a Status, also one that came inside a watch (then `http_status` is 0 and its code counts)."""
    code = http_status or status.code
    kind = _BY_STATUS.get(code, ApiError)
    return kind(code, status.reason, status.message, _retry_after_s(status, retry_after))


def _retry_after_s(status: Status, header: str) -> float:
    try:
        return max(0.0, float(header))
    except ValueError:
        return float(status.details.retry_after_seconds) if status.details else 0.0
