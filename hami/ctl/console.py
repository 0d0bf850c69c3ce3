"""The console that commands for people print to."""

from __future__ import annotations

from typing import NoReturn

import rich.console


class Console(rich.console.Console):
    """rich's console, except that a reader who has gone (`| head`) is the command line's matter, which exits 141."""

    def on_broken_pipe(self) -> NoReturn:
        """Called while BrokenPipeError is handled. Raises it again; rich would end the process with status 1."""
        self.quiet = True
        raise BrokenPipeError
