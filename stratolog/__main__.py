"""The ``stratolog`` command, and ``python -m stratolog``: loads it, and takes an interrupt meanwhile as what it is."""

import os
import sys

_INTERRUPTED = 130  # stratolog.errors, which is not loaded yet


def main() -> None:
    """Run the command; ends the process."""
    try:
        from stratolog.cli import main as run

        run()
    except KeyboardInterrupt:
        os.write(sys.stderr.fileno(), b"interrupted: nothing was done\n")
        # At once: what has been loaded by halves is not to be taken down in order.
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
