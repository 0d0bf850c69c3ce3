"""Names: what is allowed, and how generateName makes one."""

from __future__ import annotations

import random
import re
from typing import Final

from hami.sim.errors import FieldFault

_LABEL: Final = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN: Final = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


def label_faults(field: str, value: str) -> list[FieldFault]:
    """RFC 1123 label: container and namespace names."""
    if len(value) > 63:
        return [FieldFault.invalid(field, value, "must be no more than 63 characters")]
    return [] if _LABEL.match(value) else [FieldFault.invalid(field, value, _LABEL_TEXT)]


def subdomain_faults(field: str, value: str) -> list[FieldFault]:
    """RFC 1123 subdomain: names of most objects."""
    if len(value) > 253:
        return [FieldFault.invalid(field, value, "must be no more than 253 characters")]
    return [] if _SUBDOMAIN.match(value) else [FieldFault.invalid(field, value, _SUBDOMAIN_TEXT)]


def generate(base: str) -> str:
    """`base` and five letters or digits that spell no word."""
    return base[:58] + "".join(random.choices(_ALPHABET, k=5))  # noqa: S311 - a name, not a secret
