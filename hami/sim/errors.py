"""Failures in the real server's words: metav1.Status by the reasons and texts of apimachinery api/errors."""

from __future__ import annotations

from dataclasses import dataclass

from hami.core.errors import HamiError
from hami.sim.objects import Obj


class StatusError(HamiError):
    """An answer of the API server other than success: HTTP `code`, `reason`, `message` and the whole Status."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    @classmethod
    def from_status(cls, status: Obj) -> StatusError:
        """Read a Status object back, on the client's side."""
        return cls(
            int(status.get("code") or 500),
            str(status.get("reason") or ""),
            str(status.get("message") or "unknown"),
            status.get("details"),
        )

    @property
    def retry_after_s(self) -> int:
        return int(self.details.get("retryAfterSeconds") or 0)

    def status(self) -> Obj:
        """The Status object that goes over the wire."""
        body: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One finding of validation, as field.Error: `kind` is the cause type, `text` the words after the field's name."""

    field: str
    kind: str
    text: str

    @classmethod
    def required(cls, field: str, detail: str = "") -> FieldFault:
        return cls(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))

    @classmethod
    def invalid(cls, field: str, value: object, detail: str) -> FieldFault:
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        return cls(field, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")

    @classmethod
    def duplicate(cls, field: str, value: str) -> FieldFault:
        return cls(field, "FieldValueDuplicate", f'Duplicate value: "{value}"')

    @classmethod
    def forbidden(cls, field: str, detail: str) -> FieldFault:
        return cls(field, "FieldValueForbidden", f"Forbidden: {detail}")


def _qualified(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource


def _details(group: str, kind: str, name: str) -> Obj:
    details: Obj = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def not_found(group: str, resource: str, name: str) -> StatusError:
    text = f'{_qualified(group, resource)} "{name}" not found'
    return StatusError(404, "NotFound", text, _details(group, resource, name))


def unknown_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, resource: str, name: str) -> StatusError:
    text = f'{_qualified(group, resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, _details(group, resource, name))


def conflict(group: str, resource: str, name: str, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {_qualified(group, resource)} "{name}": {why}'
    return StatusError(409, "Conflict", text, _details(group, resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(group: str, kind: str, name: str, faults: list[FieldFault]) -> StatusError:
    """422 with one cause for each fault, the message as ToAggregate joins it."""
    texts = list(dict.fromkeys(f"{fault.field}: {fault.text}" for fault in faults))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = [{"reason": f.kind, "message": f.text, "field": f.field} for f in faults]
    return StatusError(422, "Invalid", f'{_qualified(group, kind)} "{name}" is invalid: {joined}', details)


def unprocessable(why: str) -> StatusError:
    details = {"causes": [{"reason": "UnexpectedServerResponse", "message": why}]}
    text = "the server rejected our request due to an error in our request"
    return StatusError(422, "Invalid", text, details)


def bad_request(text: str) -> StatusError:
    return StatusError(400, "BadRequest", text)


def forbidden(group: str, resource: str, name: str, why: str) -> StatusError:
    text = f'{_qualified(group, resource)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, _details(group, resource, name))


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def precondition(group: str, resource: str, meta: Obj, label: str, wanted: str, have: str) -> StatusError:
    """409 as storage words it where uid or resourceVersion is another one than the client named."""
    key = "/".join(filter(None, ("/registry", resource, meta.get("namespace", ""), meta["name"])))
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {have}"
    )
    return conflict(group, resource, meta["name"], why)


def unsupported_media_type(given: str) -> StatusError:
    text = (
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
    )
    return StatusError(415, "UnsupportedMediaType", f"{text} (got {given}; this stand-in reads JSON only)")


def expired(text: str) -> StatusError:
    return StatusError(410, "Expired", text)


def too_many_requests(retry_after_s: int) -> StatusError:
    text = "the server has received too many requests and has asked us to try again later"
    return StatusError(429, "TooManyRequests", text, {"retryAfterSeconds": retry_after_s})


def internal(why: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {why}", {"causes": [{"message": why}]})
