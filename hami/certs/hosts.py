"""Names and addresses of hosts as certificates and their readers compare them: one spelling for each."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from hami.core.errors import CertificateError

_LABEL: Final = r"[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.ASCII)
_MOST_NAME_CHARS: Final = 253


def spelled(host: str) -> str:
    """Addresses in their shortest form and without brackets, names in lower case and without a final dot."""
    text = host.strip()
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        return text.lower().removesuffix(".")


def checked(host: str) -> str:
    """The same for a host that a certificate is to be made for. Raises CertificateError for what is no host."""
    text = spelled(host)
    if is_address(text) or (_NAME.fullmatch(text) and len(text) <= _MOST_NAME_CHARS):
        return text
    raise CertificateError(f"{host!r} is no host: expected a DNS name (ASCII) or an IP address, without port or path")


def is_address(text: str) -> bool:
    """Whether a host is an IP address: those stand apart from DNS names in a certificate."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
