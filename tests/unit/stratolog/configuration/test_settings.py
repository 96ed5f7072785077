"""Settings: where a value comes from, which one wins, and what is refused with which words."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.declaring import OldSettingName
from schemas.settings.table import DEFAULT_NODES
from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.loading import load_settings, without_variables
from stratolog.configuration.node_configs import node_config
from stratolog.configuration.settings import NAMES, Settings
from stratolog.errors import UsageError
from tests.support.local.other_settings import ANOTHER

STACK = "stack.toml"
"""A file that we write."""


def settings_of(text: str, folder: Path, file: str = "given.toml", **environment: str) -> Settings:
    path = folder / file
    path.write_text(text)
    return load_settings(path, environment={f"STRATOLOG_{name}": value for name, value in environment.items()})


def refusal(text: str, folder: Path, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        settings_of(text, folder, **environment)
    return str(caught.value)


def test_defaults() -> None:
    settings = load_settings(environment={})
    assert settings.bootstrap_servers == "127.0.0.1:9092"
    assert settings.nodes == DEFAULT_NODES
    assert [node.name for node in settings.nodes] == ["om1", "om2", "om3"]
    assert settings.explicit == frozenset()


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load_settings(environment={}).shards = 3  # type: ignore[misc]


def test_the_table_of_other_values_is_complete() -> None:
    assert set(ANOTHER) == set(NAMES)
    assert {field.name for field in fields(Settings)} == {*NAMES, "explicit"}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_variable(name: str) -> None:
    settings = load_settings(environment={f"STRATOLOG_{name.upper()}": ANOTHER[name]})
    assert getattr(settings, name) != getattr(load_settings(environment={}), name)
    assert settings.explicit == {name}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_survives_its_own_file(name: str, tmp_path: Path) -> None:
    settings = load_settings(environment={f"STRATOLOG_{name.upper()}": ANOTHER[name]})
    assert settings_of(settings.to_toml(), tmp_path, STACK) == settings


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_variable_is_refused(name: str, tmp_path: Path) -> None:
    assert f"STRATOLOG_{name.upper()}" in refusal("", tmp_path, **{name.upper(): ""})


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    settings = settings_of('shards = 5\ncluster = "from-file"\n', tmp_path, SHARDS="6")
    assert (settings.shards, settings.cluster) == (6, "from-file")
    assert settings.explicit == {"shards", "cluster"}


def test_the_named_file_wins_over_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stratolog.toml").write_text("shards = 3\n")
    assert load_settings(environment={}).shards == 3
    (tmp_path / "other.toml").write_text("shards = 4\n")
    assert load_settings(environment={"STRATOLOG_CONFIG": str(tmp_path / "other.toml")}).shards == 4
    assert load_settings(tmp_path / "other.toml", environment={"STRATOLOG_CONFIG": "/nowhere"}).shards == 4


def test_paths_are_absolute_and_know_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = load_settings(environment={"STRATOLOG_CACHE_DIR": "~/jars"})
    assert settings.data_dir == tmp_path / ".stratolog"
    assert settings.cache_dir == Path("/home/somebody/jars")


OLD = "setting 'watchdog_ms' is called 'leader_watchdog_ms' now; the old name goes with the next release"


def test_an_old_name_in_the_file_is_taken_and_told(tmp_path: Path) -> None:
    with pytest.warns(OldSettingName, match=rf"{OLD} \(in .*given\.toml\)"):
        settings = settings_of("watchdog_ms = 700\n", tmp_path)
    assert settings.leader_watchdog_ms == 700
    assert settings.explicit == {"leader_watchdog_ms"}


def test_an_old_variable_is_taken_and_told(tmp_path: Path) -> None:
    old, new = "STRATOLOG_WATCHDOG_MS", "STRATOLOG_LEADER_WATCHDOG_MS"
    with pytest.warns(OldSettingName, match=f"'{old}' is called '{new}' now"):
        assert settings_of("leader_watchdog_ms = 800\n", tmp_path, WATCHDOG_MS="700").leader_watchdog_ms == 700
    with pytest.raises(UsageError, match=f"the environment: '{old}' is the old name of '{new}', which is given, too"):
        settings_of("", tmp_path, WATCHDOG_MS="700", LEADER_WATCHDOG_MS="700")


def test_a_file_with_both_names_is_refused(tmp_path: Path) -> None:
    assert "'watchdog_ms' is the old name of 'leader_watchdog_ms', which is given, too" in refusal(
        "watchdog_ms = 700\nleader_watchdog_ms = 700\n", tmp_path
    )


@pytest.mark.filterwarnings("ignore::schemas.settings.declaring.OldSettingName")
def test_an_old_name_with_a_wrong_value_is_refused(tmp_path: Path) -> None:
    assert "must be in 500..300000, not 1" in refusal("watchdog_ms = 1\n", tmp_path)
    with pytest.raises(UsageError, match=r"setting 'leader_watchdog_ms' in the command line: must be in .*, not 1"):
        load_settings(environment={}).with_values(watchdog_ms=1)


def test_a_command_says_in_one_line_which_name_is_old(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(f"watchdog_ms = 700\ndata_dir = '{tmp_path}'\n")
    done = subprocess.run(
        [sys.executable, "-m", "stratolog", "--config", str(tmp_path / "old.toml"), "node", "run", "om9"],
        capture_output=True, text=True, check=False, timeout=60, env=without_variables(os.environ),
    )  # fmt: skip
    assert f"warning: {OLD} (in {tmp_path / 'old.toml'})\n" in done.stderr
    assert "no node 'om9'" in done.stderr


def test_older_software_reads_what_is_written_while_nothing_newer_is_set(tmp_path: Path) -> None:
    """It refuses names that it does not know."""
    settings = load_settings(environment={})
    written = tomllib.loads(settings.to_toml())
    assert set(written) == {
        "bootstrap_servers", "cluster", "data_dir", "brokers", "durability", "response_partitions", "cache_dir",
        "audit", "shards", "pipelines", "datanode_timeout_ms", "open_key_expire_threshold_ms", "session_timeout_ms",
        "max_queued_requests", "scrub_interval_ms", "late_flush_interval_ms", "write_audit",
        "barrier_interval_ms", "scrub_within_ms", "container_bytes", "log_level", "log_format", "datanode_fsync",
        "datanode_reserve_bytes", "datanode_scrub_interval_ms", "block_bytes", "commit_way", "flush_bytes",
        "client_buffer_bytes", "packet_bytes", "topology", "client_rack", "caller", "request_timeout_ms",
        "max_in_flight", "nodes", "datanodes", "racks",
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings_of(settings.to_toml(), tmp_path, STACK) == settings
        changed = settings.with_values(leader_watchdog_ms=700)
        assert settings_of(changed.to_toml(), tmp_path, STACK) == changed
    assert tomllib.loads(changed.to_toml()).keys() - written.keys() == {"watchdog_ms"}


def test_a_wrong_value_in_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match=r"setting 'shards': must be in 1\.\.1024, not 0"):
        Settings(shards=0)


def test_nodes_as_a_table(tmp_path: Path) -> None:
    settings = settings_of('[nodes]\na = "127.0.0.1:1"\nb = "host.example:65535"\n', tmp_path)
    assert settings.nodes == (
        NodeAddress(name="a", host="127.0.0.1", port=1),
        NodeAddress(name="b", host="host.example", port=65535),
    )


@pytest.mark.parametrize(
    ("written", "near"),
    [("shard", "shards"), ("bootstrap_server", "bootstrap_servers"), ("datadir", "data_dir"), ("Shards", "shards")],
)
def test_an_unknown_name_in_the_file_is_refused_with_the_near_one(written: str, near: str, tmp_path: Path) -> None:
    message = refusal(f"{written} = 1\n", tmp_path)
    assert f"unknown setting '{written}'" in message
    assert f"did you mean '{near}'?" in message
    assert "given.toml" in message


def test_an_unknown_variable_is_refused_with_the_near_one(tmp_path: Path) -> None:
    message = refusal("", tmp_path, BOOTSTRAP_SERVER="x:1")
    assert "unknown setting 'STRATOLOG_BOOTSTRAP_SERVER' in the environment" in message
    assert "did you mean 'STRATOLOG_BOOTSTRAP_SERVERS'?" in message


def test_an_unknown_name_without_a_near_one_is_refused_without_a_guess(tmp_path: Path) -> None:
    assert refusal("zzzzzzzz = 1\n", tmp_path).endswith("given.toml")


def test_explicit_is_no_setting(tmp_path: Path) -> None:
    assert "unknown setting 'explicit'" in refusal('explicit = ["shards"]\n', tmp_path)


def test_other_variables_are_left_alone() -> None:
    assert load_settings(environment={"PATH": "/bin", "STRATO": "x"}).explicit == frozenset()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('shards = "two"', "must be a whole number, not 'two'"),
        ("shards = 2.0", "must be a whole number, not 2.0"),
        ("shards = true", "must be a whole number, not True"),
        ("shards = 0", "must be in 1..1024, not 0"),
        ("shards = 1025", "must be in 1..1024, not 1025"),
        ("shards = -1", "must be in 1..1024, not -1"),
        ("shards = []", "must be a whole number, not []"),
        ("brokers = 2", "must be 1 or 3, not 2"),
        ("brokers = 4", "must be in 1..3, not 4"),
        ('durability = "none"', "must be replicated or fsync, not 'none'"),
        ('trace_endpoint = "127.0.0.1:4318"', "must be http://host:port, not '127.0.0.1:4318'"),
        ('trace_endpoint = "http://"', "must be http://host:port, not 'http://'"),
        ('trace_endpoint = "http://h:x"', "must be http://host:port, not 'http://h:x'"),
        ('trace_endpoint = "http://h:70000"', "must be http://host:port, not 'http://h:70000'"),
        ('trace_endpoint = "http://h:1/?q"', "must be http://host:port, not 'http://h:1/?q'"),
        ('trace_endpoint = "http://me:secret@h:1"', "must be http://host:port, not"),
        ("trace_endpoint = 4318", "must be a text, not 4318"),
        ("trace_one_in = 0", "must be in 1..1000000, not 0"),
        ("durability = 1", "must be a text, not 1"),
        ('log_level = "info"', "must be DEBUG, INFO, WARNING or ERROR, not 'info'"),
        ("bootstrap_servers = 9092", "must be a text, not 9092"),
        ('bootstrap_servers = ""', "must not be empty"),
        ('bootstrap_servers = "localhost"', "must be host:port, not 'localhost'"),
        ('bootstrap_servers = "localhost:"', "must be host:port, not 'localhost:'"),
        ('bootstrap_servers = "localhost:0"', "must be host:port, not 'localhost:0'"),
        ('bootstrap_servers = "localhost:65536"', "must be host:port, not 'localhost:65536'"),
        ('bootstrap_servers = "a:1,,b:2"', "must not be empty"),
        ('bootstrap_servers = "http://a:1"', "must be host:port, not 'http://a:1'"),
        ('nodes = "om1"', "must be name=host:port, not 'om1'"),
        ("nodes = 3", "must be a table of name = 'host:port', not 3"),
        ("nodes = {}", "must be 1 to 31 nodes, not 0"),
        ("nodes = {om1 = 9871}", "must be a text, not 9871"),
        ('nodes = {om1 = "a:1", om2 = "a:1"}', "'a:1' is there twice"),
        ('nodes = {"om 1" = "a:1"}', "not 'om 1'"),
        ('nodes = "a=h:1,a=h:2"', "'a' is there twice"),
        ("pipelines = []", "must be a list of names, not []"),
        ('pipelines = ["p", "p"]', "'p' is there twice"),
        ('pipelines = ["p", 1]', "must be a text, not 1"),
        ('cluster = "a/b"', "not 'a/b'"),
        (f'cluster = "{"x" * 64}"', "at most 63"),
        ("audit = 1", "must be true or false, not 1"),
        ("audit_heap_mib = 511", "must be in 512..65536, not 511"),
        ("audit_heap_mib = 65537", "must be in 512..65536, not 65537"),
        ('audit_heap_mib = "1g"', "must be a whole number, not '1g'"),
        ('audit = "perhaps"', "must be true or false, not 'perhaps'"),
        ("data_dir = 3", "must be a text, not 3"),
        ('data_dir = " "', "must not be empty"),
        ("pipeline_watchdog_ms = 199", "must be in 200..300000, not 199"),
        ("datanode_heartbeat_interval_ms = 99", "must be in 100..60000, not 99"),
        ("block_scrub_interval_ms = -1", "must be in 0..2592000000, not -1"),
        ("datanode_max_streams = 1025", "must be in 1..1024, not 1025"),
        ("bootstrap_bytes_per_s = 1", "must be 0 or in 1048576..1099511627776, not 1"),
        ("audit_nice = 20", "must be in 0..19, not 20"),
        ("session_timeout_ms = 499", "must be in 500..300000, not 499"),
        ("barrier_interval_ms = 9", "must be in 10..3600000, not 9"),
        ("max_in_flight = 0", "must be in 1..100000, not 0"),
        ("request_timeout_ms = 300000", "must be in 1..280000, not 300000"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_value(line: str, words: str, tmp_path: Path) -> None:
    message = refusal(line + "\n", tmp_path)
    assert f"setting '{line.split(' ', maxsplit=1)[0]}' in " in message
    assert words in message


@pytest.mark.parametrize("value", ["12345678901234567890", "0x10", "1_000", "1e3", "３"])
def test_numbers_in_variables_are_plain_digits(value: str, tmp_path: Path) -> None:
    assert "must be" in refusal("", tmp_path, SHARDS=value)


def test_spaces_around_a_variable_do_not_count() -> None:
    assert load_settings(environment={"STRATOLOG_SHARDS": " 4 "}).shards == 4
    assert load_settings(environment={"STRATOLOG_BOOTSTRAP_SERVERS": " a:1, b:2 "}).bootstrap_servers == "a:1,b:2"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: No such file"):
        load_settings(tmp_path / "absent.toml", environment={})


@pytest.mark.parametrize("content", [b"shards = ", b"= 1", b"\xff\xfe", b"shards = 1\nshards = 2"])
def test_a_file_that_is_not_toml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.toml is not TOML"):
        load_settings(path, environment={})


def test_a_directory_as_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        load_settings(tmp_path, environment={})


def test_options_of_the_command_line_are_checked_and_explicit() -> None:
    settings = load_settings(environment={}).with_values(brokers=3, audit=None)
    assert settings.brokers == 3
    assert settings.explicit == {"brokers"}
    with pytest.raises(UsageError, match="setting 'brokers' in the command line: must be 1 or 3, not 2"):
        settings.with_values(brokers=2)


def test_a_node_config_is_made_of_the_settings(tmp_path: Path) -> None:
    settings = load_settings(environment={"STRATOLOG_SHARDS": "4", "STRATOLOG_DATA_DIR": str(tmp_path)})
    make_secret(settings.secret_file)
    config = node_config(settings, "om2")
    assert (config.node, config.address, config.shards) == ("om2", "127.0.0.1:9872", 4)
    assert config.replicas == ("om1", "om2", "om3")
    assert config.data_dir == settings.node_folder("om2") == tmp_path / "nodes" / "om2"
    assert config.http_hosts == {"127.0.0.1"}


def test_an_unknown_node_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no node 'om4' in the setting 'nodes'; there is: om1, om2, om3"):
        node_config(load_settings(environment={}), "om4")


def test_a_child_process_gets_no_variables_of_ours() -> None:
    assert without_variables({"STRATOLOG_SHARDS": "3", "PATH": "/bin"}) == {"PATH": "/bin"}


@given(
    shards=st.integers(1, 1024),
    caller=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
    folder=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
        lambda text: text.strip() == text
    ),
    pipelines=st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True), min_size=1, unique=True),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, shards: int, caller: str, folder: str, pipelines: list[str]
) -> None:
    settings = load_settings(environment={}).with_values(
        shards=shards, caller=caller, data_dir=Path("/") / folder, pipelines=pipelines
    )
    assert settings_of(settings.to_toml(), tmp_path_factory.getbasetemp(), STACK) == settings


def test_datanodes_as_a_table(tmp_path: Path) -> None:
    settings = settings_of('[datanodes]\nd1 = "127.0.0.1:1:2"\n[racks]\nd1 = "/r1"\n', tmp_path)
    assert settings.datanodes == (DatanodeAddress(name="d1", host="127.0.0.1", port=1, http_port=2),)
    assert (settings.datanode("d1").address, settings.datanode("d1").http_address) == ("127.0.0.1:1", "127.0.0.1:2")
    assert (settings.rack_of("d1"), settings.rack_of("d2")) == ("/r1", "/default-rack")


def test_no_datanodes(tmp_path: Path) -> None:
    assert settings_of("", tmp_path, DATANODES="none", RACKS="none").datanodes == ()
    assert settings_of(load_settings(environment={}).to_toml(), tmp_path, STACK).datanodes == ()
    with pytest.raises(UsageError, match="no datanode 'dn9'"):
        load_settings(environment={}).datanode("dn9")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("d1=127.0.0.1:1", "must be host:port:http_port, not '127.0.0.1:1'"),
        ("d1=127.0.0.1:1:99999", "must be host:port"),
        ("d1", "must be name=host:port:http_port, not 'd1'"),
        ("d1=a:1:2,d1=a:3:4", "'d1' is there twice"),
        ("d1=a:1:1", "'a:1' is there twice"),
    ],
)
def test_wrong_datanodes(value: str, words: str, tmp_path: Path) -> None:
    assert words in refusal("", tmp_path, DATANODES=value)


def test_wrong_racks(tmp_path: Path) -> None:
    assert "must be a path such as /rack1" in refusal("", tmp_path, RACKS="d1=rack")


def test_a_node_is_open_on_this_machine_alone(tmp_path: Path) -> None:
    def config(host: str, **changes: object) -> str:
        address = NodeAddress(name="om1", host=host, port=9871)
        settings = replace(load_settings(environment={}), data_dir=tmp_path, nodes=(address,), **changes)  # type: ignore[arg-type]
        make_secret(settings.secret_file)
        return node_config(settings, "om1").auth

    assert config("127.0.0.1") == config("localhost") == "none"
    for host in ("0.0.0.0", "om1", "10.0.0.7"):
        with pytest.raises(UsageError, match="'auth_none_anywhere = true' lets anybody do everything"):
            config(host)
        assert config(host, auth="signed") == "signed"
        assert config(host, auth_none_anywhere=True) == "none"


SCRAM = """
[kafka]
security.protocol = "SASL_SSL"
sasl.username = "alice"
sasl.password.file = "alice.password"
"""


def test_the_brokers_are_reached_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice.password").write_text("secret-4711")
    (tmp_path / "alice.password").chmod(0o600)
    settings = settings_of(f'bootstrap_servers = "h:1"\n{SCRAM}', tmp_path, KAFKA_SASL_USERNAME="bob")
    assert dict(settings.kafka) == {
        "security.protocol": "SASL_SSL", "sasl.username": "bob", "sasl.password.file": str(tmp_path / "alice.password"),
    }  # fmt: skip
    assert settings.connection.servers == "h:1"
    assert settings.connection.password() == "secret-4711"
    assert "secret-4711" not in repr(settings) + settings.to_toml() + repr(settings.connection)
    assert settings.with_values(node_bootstrap_servers="n:2").connection.servers == "n:2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[kafka]\nsasl.password = 'secret-4711'", "kafka.sasl.password is taken from a file"),
        ("[kafka]\nacks = '0'", "kafka.acks is no setting that can be given"),
        ("kafka = 'SSL'", "must be name=value"), ("kafka = 3", "must be a table"),
    ],
)  # fmt: skip
def test_a_wrong_table_of_the_brokers_is_named(text: str, words: str, tmp_path: Path) -> None:
    said = refusal(text, tmp_path)
    assert "setting 'kafka'" in said
    assert words in said
    assert "secret-4711" not in said


def test_a_variable_of_the_brokers_is_named(tmp_path: Path) -> None:
    assert "STRATOLOG_KAFKA_ACKS" in refusal("", tmp_path, KAFKA_ACKS="0")
    assert "STRATOLOG_KAFKA_SECURITY_PROTOCOL" in refusal("", tmp_path, KAFKA_SECURITY_PROTOCOL="TLS")


def test_what_the_connection_needs_is_told_when_it_is_used(tmp_path: Path) -> None:
    settings = settings_of(SCRAM, tmp_path)
    with pytest.raises(UsageError, match=r"setting kafka.sasl.password.file: .*alice.password: No such file"):
        _ = settings.connection
    with pytest.raises(UsageError, match=r"needs kafka.sasl.username"):
        _ = settings_of("[kafka]\nsecurity.protocol = 'SASL_SSL'", tmp_path).connection
