"""The file with the cluster's secret: who may read it, what it must hold, and that it is made once."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stratolog.configuration.cluster_secret import make_secret, read_secret
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import node_config
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError

TEXT = "0123456789abcdef" * 4


def made(path: Path, text: str = TEXT, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_is_made_for_its_owner_alone_and_once(tmp_path: Path):
    path = tmp_path / "new" / "cluster-secret"
    old = os.umask(0)
    try:
        assert make_secret(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_bytes()
    assert len(first.strip()) == 64
    assert not make_secret(path)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["cluster-secret"]


def test_of_many_who_make_it_one_does_and_all_have_the_same(tmp_path: Path):
    path = tmp_path / "cluster-secret"
    with ThreadPoolExecutor(8) as pool:
        proofs = [pool.submit(lambda: (make_secret(path), read_secret(path).proof(b"x"))) for _ in range(32)]
    found = [proof.result() for proof in proofs]
    assert sum(one for one, _ in found) == 1
    assert len({proof for _, proof in found}) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_white_space_around_it_does_not_count(tmp_path: Path):
    bare, spaced = made(tmp_path / "a"), made(tmp_path / "b", f"  {TEXT}\r\n\n")
    assert read_secret(bare).proof(b"x") == read_secret(spaced).proof(b"x")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o777])
def test_others_may_not_read_it(tmp_path: Path, mode: int):
    path = made(tmp_path / "s", mode=mode)
    with pytest.raises(UsageError, match=f"may be read by others \\(mode {mode:04o}\\): 'chmod 600 {path}'"):
        read_secret(path)


@pytest.mark.parametrize(
    ("text", "said"), [("", "not 0"), ("short", "not 5"), (" " * 100, "not 0"), ("x" * 5000, "not 5000")]
)
def test_it_has_a_size(tmp_path: Path, text: str, said: str):
    with pytest.raises(UsageError, match=f"a secret has 32 to 4096 bytes, {said}"):
        read_secret(made(tmp_path / "s", text))


def test_without_one_a_node_is_told_what_to_do(tmp_path: Path):
    settings = Settings(data_dir=tmp_path)
    for configure in (lambda: node_config(settings, "om1"), settings.secret):
        with pytest.raises(UsageError) as error:
            configure()
        assert str(error.value).startswith(
            f"setting 'cluster_secret_file': {tmp_path}/cluster-secret does not exist: 'stratolog up' makes one"
        )
        assert "'stratolog admin make-secret'" in str(error.value)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="cluster_secret_file"):
            read_secret(path)


def test_the_settings_name_its_file_and_never_hold_it(tmp_path: Path):
    settings = Settings(data_dir=tmp_path)
    make_secret(settings.secret_file)
    text = settings.to_toml()
    assert "cluster_secret_file" not in text, "older software, to which one may go back, would refuse the name"
    elsewhere = replace(settings, cluster_secret_file=Path("/run/secrets/s"))
    assert 'cluster_secret_file = "/run/secrets/s"' in elsewhere.to_toml()
    secret = settings.secret_file.read_text().strip()
    assert secret not in text
    assert secret not in repr(node_config(settings, "om1"))
    (tmp_path / "stack.toml").write_text(text)
    assert load_settings(tmp_path / "stack.toml", environment={}).secret_file == settings.secret_file
    given = load_settings(environment={"STRATOLOG_CLUSTER_SECRET_FILE": "/run/secrets/s"})
    assert given.secret_file == Path("/run/secrets/s")
