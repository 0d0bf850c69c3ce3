"""`hami demo`: the tour of `ctl.demo`."""

from hami.ctl.demo.run import main

__all__ = ["main"]
