"""Order of resource versions, as placement knows it."""

from hami.core.versions import is_older

__all__ = ["is_older"]
