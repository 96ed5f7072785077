"""Errors that the command shows as one clear sentence, and the exit codes of the command.

The person (or program) who gave the command can act on a :class:`UserError`; ``stratolog.cli`` prints it without a
traceback and exits with its code. Any other error is a defect and keeps its traceback.

====  =============================================================================================
code  meaning
====  =============================================================================================
0     done
1     the command ran, and the answer is no: a check failed, a verdict is not ``equal``, a request was refused
2     wrong usage: an unknown option, a wrong setting, an unreadable file
3     what the command needs is not there: no running stack, no reachable broker or node, a missing tool
130   interrupted
====  =============================================================================================
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """The command ran, and did not do what was asked for."""

    exit_code = EXIT_FAILED


class UsageError(UserError):
    """The command line, a setting or a file given is wrong."""

    exit_code = EXIT_USAGE


class Unavailable(UserError):
    """Something the command depends on is missing or does not answer."""

    exit_code = EXIT_UNAVAILABLE
