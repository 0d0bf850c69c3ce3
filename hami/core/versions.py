"""Order of resource versions."""

from __future__ import annotations


def is_older(version: str, known: str) -> bool:
    """Whether `version` is before `known`, for one and the same object.

    Resource versions are comparable integers (Kubernetes 1.35, KEP-5504); anything else is never called older.
    """
    return version.isdigit() and known.isdigit() and int(version) < int(known)
