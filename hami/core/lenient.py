"""JSON objects as Go reads them: `null` for a field means what a missing field means.

kube-apiserver leaves such fields out; others that write Kubernetes objects (tools in other languages) may not.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from hami.core.errors import TransportError

_any_decoder: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder()
T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Raises msgspec.DecodeError on a body that does not fit, also on nesting that is too deep to read."""
    try:
        return decoder.decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the JSON is nested too deeply") from error


def lenient(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decodes; what does not fit is decoded again without its nulls, which costs the rare writer of some.

    Raises msgspec.DecodeError.
    """
    try:
        return decoded(decoder, body)
    except msgspec.DecodeError:
        found = decoded(_any_decoder, body)
        try:
            text = _encoder.encode(_without_nulls(found))
        except RecursionError as error:
            raise msgspec.DecodeError("the JSON is nested too deeply") from error
        return decoded(decoder, text)


def decode_answer(body: bytes, decoder: msgspec.json.Decoder[T], path: str) -> T:
    """The body of a 2xx answer. One that cannot be read is not kube-apiserver's (a proxy's page): TransportError."""
    try:
        return lenient(decoder, body)
    except msgspec.DecodeError as error:
        raise TransportError(f"{path}: the answer cannot be read: {error}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
