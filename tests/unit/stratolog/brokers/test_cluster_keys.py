"""Keys of a cluster whose processes run elsewhere: what is made, what stays, and what is refused by name."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.brokers import cluster_keys
from stratolog.brokers.cluster_keys import make_cluster_keys
from stratolog.commands.brokers import one_broker
from stratolog.commands.brokers.one_broker import broker_cluster, named_cluster_id
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local.kafka import KafkaCluster

DAY_S = 86_400


def settings_in(folder: Path, **more: object) -> Settings:
    found = Settings(
        data_dir=folder / "authority", key_encryption_file=folder / "key" / "key-encryption-key",
        bootstrap_servers="k1:9092", node_bootstrap_servers="k1:9093",
        nodes=(NodeAddress(name="om1", host="om1.example", port=9871),),
        datanodes=(DatanodeAddress(name="dn1", host="dn1.example", port=9901, http_port=10001),),
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def names(paths: list[Path]) -> set[str]:
    return {path.name for path in paths}


def test_what_is_right_stays_and_what_is_missing_is_made(tmp_path: Path) -> None:
    settings, folder = settings_in(tmp_path), tmp_path / "keys"
    made = names(make_cluster_keys(settings, folder))
    assert made == {path.name for path in folder.iterdir()} == {
        "ca.pem", "broker-broker-1.pem", "broker-broker-1.p12", "om-om1.pem", "datanode-dn1.pem", "audit-audit.pem",
        "admin-operator.pem", "cluster-secret", "audit.credentials",
    }  # fmt: skip
    assert make_cluster_keys(settings, folder) == []
    more = (*settings.nodes, NodeAddress(name="om2", host="om2.example", port=9872))
    (folder / "datanode-dn1.pem").unlink()
    assert names(make_cluster_keys(replace(settings, nodes=more), folder)) == {"om-om2.pem", "datanode-dn1.pem"}


def test_certificates_are_renewed_in_time_and_secrets_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = settings_in(tmp_path), tmp_path / "keys"
    make_cluster_keys(settings, folder)
    secret = (folder / "cluster-secret").read_bytes()
    later_s = int(time.time()) + 21 * DAY_S
    monkeypatch.setattr(cluster_keys, "time", SimpleNamespace(time=lambda: later_s))
    made = names(make_cluster_keys(settings, folder))
    assert made == {path.name for path in folder.iterdir()} - {"ca.pem", "cluster-secret", "audit.credentials"}
    assert (folder / "cluster-secret").read_bytes() == secret


def test_a_key_that_is_lost_is_named_and_nothing_is_made_anew(tmp_path: Path) -> None:
    settings, folder = settings_in(tmp_path), tmp_path / "keys"
    make_cluster_keys(settings, folder)
    assert settings.key_encryption_file is not None
    settings.key_encryption_file.unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match="setting 'key_encryption_file'"):
        make_cluster_keys(settings, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_without_the_setting_the_key_lies_beside_the_data(tmp_path: Path) -> None:
    make_cluster_keys(settings_in(tmp_path, key_encryption_file=None), tmp_path / "keys")
    assert (tmp_path / "authority-keys" / "key-encryption-key").exists()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/keys cannot be made: Not a directory"):
        make_cluster_keys(settings_in(tmp_path), tmp_path / "file" / "keys")


def test_every_broker_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are 3 brokers, and the settings .* name 1 and 1: each broker needs"):
        make_cluster_keys(settings_in(tmp_path, brokers=3), tmp_path / "keys")


FILES = {"tls_ca_file": Path("/k/ca.pem"), "tls_certificate_file": Path("/k/broker-broker-1.pem")}


@pytest.mark.parametrize(
    ("number", "more", "said"),
    [
        (
            1,
            {},
            "needs the settings node_bootstrap_servers, tls_ca_file, .*: without tls_ca_file, tls_certificate_file",
        ),
        (2, FILES, "there is no broker 2: the setting 'brokers' is 1"),
        (0, FILES, "there is no broker 0"),
        (1, {**FILES, "brokers": 3}, "there are 3 brokers, and the settings .* name 1 and 1"),
        (1, {**FILES, "node_bootstrap_servers": "k2:9093"}, "one host, and the settings say k1:9092 and k2:9093"),
    ],
)
def test_settings_that_make_no_broker_are_named(
    number: int, more: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        broker_cluster(settings_in(tmp_path, **more), number, tmp_path)


def test_a_broker_is_formatted_and_its_command_takes_the_place_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(one_broker, "check_java", lambda: done.append("java"))
    monkeypatch.setattr(one_broker, "kafka_jars", lambda cache: tmp_path / "jars")
    monkeypatch.setattr(KafkaCluster, "format", lambda _, numbers: done.append(list(numbers)))
    monkeypatch.setattr(KafkaCluster, "broker_command", lambda _, number: ["/java", f"broker {number}"])
    monkeypatch.setattr(os, "execv", lambda program, command: done.append((program, command)))
    one_broker.run_broker(settings_in(tmp_path, **FILES), 1)
    assert done == ["java", [1], ("/java", ["/java", "broker 1"])]


def test_clusters_of_different_names_are_different_and_no_id_is_read_as_an_option() -> None:
    ids = [named_cluster_id(f"cluster{number}") for number in range(500)]
    assert len(set(ids)) == 500
    assert {len(one) for one in ids} == {22}
    assert not any(one.startswith("-") for one in ids)
