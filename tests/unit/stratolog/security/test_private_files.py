"""Files that are taken from others, and processes that make none for them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratolog.errors import UsageError
from stratolog.local.processes import spawn
from stratolog.security.private_files import be_private, private_umask, tighten

NOBODY = 65_534
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def for_others(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077 and not path.is_symlink()]


def older(folder: Path) -> Path:
    """A data directory as an older release has left it."""
    (folder / "kafka/broker-1/data/om.log-0").mkdir(parents=True)
    (folder / "kafka/broker-1/data/om.log-0/0.log").write_bytes(b"bytes of users")
    (folder / "nodes/om1").mkdir(parents=True)
    (folder / "nodes/om1/run").write_text("x")
    (folder / "nodes/om1/run").chmod(0o755)
    (folder / "link").symlink_to("/etc/hostname")
    return folder


def test_what_an_older_release_has_made_is_taken_from_others_once(tmp_path: Path):
    data, elsewhere = older(tmp_path / "data"), Path("/etc/hostname").stat().st_mode
    assert tighten(data) == 9
    assert for_others(data) == []
    assert stat.S_IMODE((data / "nodes/om1/run").stat().st_mode) == 0o700
    assert Path("/etc/hostname").stat().st_mode == elsewhere, "no link is followed"
    (data / "nodes/om1/late").write_text("of a process that still has the older umask")
    assert tighten(data) == 0, "a closed folder is not looked into"
    assert tighten(data, again=True) == 1
    assert for_others(data) == []
    assert tighten(tmp_path / "nothing") == 0


def test_a_process_that_is_started_makes_nothing_for_others(tmp_path: Path):
    log, made = tmp_path / "logs" / "x.log", tmp_path / "made"
    code = f"import os; os.mkdir({str(made)!r}); open({str(made / 'file')!r}, 'w').write('x'); print('said')"
    for detached in (True, False):
        process = spawn([sys.executable, "-c", code], log=log, detached=detached)
        assert process.wait(20)
        assert log.read_text().endswith("said\n")
        assert for_others(made) == for_others(log.parent) == []
        (made / "file").unlink()
        made.rmdir()
    with private_umask():
        (tmp_path / "own").write_text("x")
    (tmp_path / "after").write_text("x")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("own", "after")] == [0o600, 0o644]


def test_a_process_that_is_about_to_serve_makes_nothing_for_others(tmp_path: Path):
    data = older(tmp_path / "data")
    be_private(data)
    (data / "new").write_text("x")
    assert for_others(data) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another account")
def test_a_folder_of_another_account_that_strangers_may_use_is_refused_by_name(tmp_path: Path):
    """A volume that belongs to root and its group is taken: containers have such."""
    tmp_path.chmod(0o755)
    volume = tmp_path / "volume"
    volume.mkdir()
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]);\n"
        "from pathlib import Path\n"
        "from stratolog.security.private_files import tighten\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "print(tighten(Path(sys.argv[2])))"
    )

    def as_nobody(mode: int) -> subprocess.CompletedProcess[str]:
        volume.chmod(mode)
        place = Path("/tmp") / f"stratolog-{os.getpid()}-{mode:o}"
        volume.rename(place)
        try:
            command = [sys.executable, "-c", code, str(ROOT), str(place)]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        finally:
            place.rename(volume)

    if as_nobody(0o700).returncode and "ModuleNotFoundError" in as_nobody(0o700).stderr:
        pytest.skip("another account cannot read this checkout")
    refused = as_nobody(0o777)
    assert refused.returncode != 0
    assert "belongs to another account, and strangers may use it (mode 0777)" in refused.stderr
    assert UsageError.__name__ in refused.stderr
    assert as_nobody(0o770).stdout.strip() == "0"
