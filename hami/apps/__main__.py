"""`python -m hami.apps` is `hami`, for debuggers."""

from hami.apps.cli import main

main()
