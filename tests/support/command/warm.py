"""``run`` runs the ``stratolog`` command in a process of its own, which is forked from one that has imported it.

A command takes a tenth of a second; to import it takes most of one, and tests run it a hundred times. What the process
is given (words, environment, directory) is set after the fork and before ``stratolog.__main__.main`` is called,
and the one that it is forked from is left as it was. Tests of the start itself start the command cold.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 300
"""The longest that a command may take, unless a test says less: a test that hangs ends its whole worker at 600 s."""


def run(
    *words: str, env: Mapping[str, str], cwd: Path, timeout_s: int = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run the command to its end, as ``subprocess.run`` does; one that takes ``timeout_s`` ends by SIGALRM."""
    done = raw(*words, env=env, cwd=cwd, timeout_s=timeout_s)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def raw(
    *words: str, env: Mapping[str, str], cwd: Path, stdin: bytes = b"", timeout_s: int = TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    """Run the command on these bytes to its end, and return the bytes that it wrote."""
    with ExitStack() as open_:
        files = {name: open_.enter_context(tempfile.TemporaryFile()) for name in ("stdin", "stdout", "stderr")}
        files["stdin"].write(stdin)
        files["stdin"].flush()
        paths = {name: f"/proc/{os.getpid()}/fd/{file.fileno()}" for name, file in files.items()}
        code = _ask({"words": words, "env": dict(env), "cwd": str(cwd), "timeout_s": timeout_s, **paths})
        written = []
        for name in ("stdout", "stderr"):
            files[name].seek(0)
            written.append(files[name].read())
    return subprocess.CompletedProcess(["stratolog", *words], code, *written)


def _ask(asked: Mapping[str, Any]) -> int:
    """Have a process forked that becomes the command, on these three files of ours, and return its exit code."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the process that commands are forked from is gone"
    return int(answer)


@cache
def _server() -> subprocess.Popen[str]:
    """Return the process that commands are forked from: it ends when this one has ended, and its standard input with it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
    return subprocess.Popen(
        [sys.executable, "-m", __name__], cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip


def _serve() -> None:
    from stratolog.cli import build_app

    build_app()  # imports the modules of all commands
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


def _become(asked: Mapping[str, Any]) -> None:
    """Be the command, in a process that was forked for it; does not return."""
    code = 1
    try:
        for number, (name, flags) in enumerate(
            (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))
        ):
            os.dup2(os.open(asked[name], flags), number)
        os.setsid()
        signal.alarm(asked["timeout_s"])
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        sys.argv = ["stratolog", *asked["words"]]
        from stratolog.__main__ import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
