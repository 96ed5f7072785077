"""``python -m stratolog``: the same as the ``stratolog`` command."""

from stratolog.cli import main

main()
