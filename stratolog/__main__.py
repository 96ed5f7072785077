"""The ``stratolog`` command, and ``python -m stratolog``: it also reports an interrupt while the command loads."""

import os
import sys

_INTERRUPTED = 130  # as in stratolog.errors, which is not loaded yet


def main() -> None:
    """Run the command; ends the process."""
    try:
        from stratolog.cli import main as run

        run()
    except KeyboardInterrupt:
        os.write(sys.stderr.fileno(), b"interrupted: nothing was done\n")
        # Exit at once: half-loaded modules cannot be shut down in order.
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
