"""The table of settings: each is declared once, slices come from it, and names of before are taken for one release."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.config import DatanodeConfig
from om_processors.config import NodeConfig
from schemas.settings.declaring import Audience, SettingsGroup, renamed, setting, with_old_names
from schemas.settings.table import GROUPS
from schemas.settings.values import integer
from spark_streaming.configuration.audit_config import AuditConfig
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings

CONFIGURATIONS: dict[Audience, type[SettingsGroup]] = {
    Audience.NODE: NodeConfig, Audience.DATANODE: DatanodeConfig, Audience.AUDIT: AuditConfig,
}  # fmt: skip
COUNTS = frozenset({
    "shards", "brokers", "response_partitions", "commit_way", "max_queued_requests", "max_in_flight",
    "bootstrap_records", "trace_one_in", "datanode_max_streams", "audit_records_per_trigger",
    "audit_reports_per_trigger", "audit_nice",
})  # fmt: skip
"""Numbers that have no unit."""


def settings_of(group: type[SettingsGroup]) -> set[str]:
    return {one.name for one in fields(group) if one.metadata}


def test_each_setting_is_declared_once_and_the_whole_table_has_it() -> None:
    declared = Counter(one.name for group in GROUPS for one in fields(group))
    assert [name for name, times in declared.items() if times > 1] == []
    assert settings_of(Settings) == set(declared)


@pytest.mark.parametrize("reader", CONFIGURATIONS)
def test_a_configuration_has_the_settings_of_groups_that_its_process_reads(reader: Audience) -> None:
    """Whole groups, and none of them written again; what else it has is no setting."""
    made = CONFIGURATIONS[reader]
    inherited = [group for group in GROUPS if issubclass(made, group)]
    assert inherited
    assert all(reader in group.FOR_WHOM for group in inherited)
    names = set().union(*map(settings_of, inherited))
    assert names.isdisjoint(made.__annotations__)
    assert settings_of(made) <= names | set(made.__annotations__)


def test_a_number_says_its_unit() -> None:
    units = ("_ms", "_s", "_bytes", "_mib", "_per_s")
    numbers = {one.name for group in GROUPS for one in fields(group) if str(one.type).startswith("int")}
    assert {name for name in numbers if not name.endswith(units)} == COUNTS


def test_a_default_is_allowed_and_on_its_group() -> None:
    Settings().check_settings()
    for group in GROUPS:
        for one in fields(group):
            assert getattr(group, one.name) == one.default


def test_every_reader_takes_what_it_has_returned() -> None:
    settings = load_settings(environment={})
    for group in GROUPS:
        for one in fields(group):
            value = getattr(settings, one.name)
            assert value is None or one.metadata["read"](value) == value


@dataclass(frozen=True, kw_only=True)
class Some(SettingsGroup, for_whom=(Audience.STACK,)):
    """A group with what a program may give and a person may not."""

    wait_ms: int = setting(integer(10, 20), 15, in_programs=integer(0, 20))
    pause_ms: int | None = setting(integer(10, 20), None)


@with_old_names({"patience_ms": "wait_ms"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Made(Some):
    """A configuration."""

    name: str = ""

    def __post_init__(self) -> None:
        self.check_settings()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"wait_ms": 21}, "setting 'wait_ms': must be in 0..20, not 21"),
        ({"wait_ms": None}, "setting 'wait_ms': must be a whole number, not None"),
        ({"wait_ms": "12"}, "setting 'wait_ms': must be given as 12, not '12'"),
        ({"wait_ms": True}, "setting 'wait_ms': must be a whole number, not True"),
        ({"pause_ms": 9}, "setting 'pause_ms': must be in 10..20, not 9"),
    ],
)
def test_a_program_that_gives_a_wrong_value_is_told_which(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="^") as caught:
        Made(**given)
    assert str(caught.value) == said
    assert (Made(wait_ms=0).wait_ms, Made().pause_ms) == (0, None)


def test_a_constructor_takes_an_old_name_and_the_object_has_it() -> None:
    old: dict[str, Any] = {"patience_ms": 12}
    with pytest.warns(DeprecationWarning, match="setting 'patience_ms' is called 'wait_ms' now") as heard:
        made = Made(name="a", **old)
    assert made == Made(name="a", wait_ms=12)
    with pytest.warns(DeprecationWarning, match="'wait_ms'") as asked:
        assert getattr(made, "patience_ms") == 12  # noqa: B009 - the type checker knows present names alone
    assert {Path(one.filename).name for one in (*heard, *asked)} == {Path(__file__).name}, "whom it concerns"
    with pytest.raises(ValueError, match="'patience_ms' is the old name of 'wait_ms', which is given, too"):
        Made(wait_ms=12, **old)


@pytest.mark.parametrize(
    ("made", "old", "new", "value"),
    [
        (NodeConfig, "watchdog_ms", "leader_watchdog_ms", 700),
        (DatanodeConfig, "watchdog_ms", "pipeline_watchdog_ms", 700),
        (DatanodeConfig, "fsync", "datanode_fsync", "packet"),
        (DatanodeConfig, "reserve_bytes", "datanode_reserve_bytes", 7),
        (DatanodeConfig, "heartbeat_interval_ms", "datanode_heartbeat_interval_ms", 700),
        (DatanodeConfig, "scrub_interval_ms", "datanode_scrub_interval_ms", 7),
        (DatanodeConfig, "max_streams", "datanode_max_streams", 7),
        (AuditConfig, "nice", "audit_nice", 7),
        (Settings, "watchdog_ms", "leader_watchdog_ms", 700),
    ],
)
def test_names_of_before_are_known(made: type[Any], old: str, new: str, value: object) -> None:
    more = {
        NodeConfig: {
            "node": "a", "cluster": "c", "address_host": "h", "address_port": 1, "bootstrap_servers": "b:1",
            "replicas": ("a",), "data_dir": Path("d"), "datanodes": (), "secret": None, "http_hosts": frozenset(),
        },
        DatanodeConfig: {
            "node": "a", "cluster": "c", "host": "h", "port": 1, "http_port": 2, "bootstrap_servers": "b:1",
            "data_dir": Path("d"),
        },
        AuditConfig: {"bootstrap_servers": "b:1", "work_dir": Path("d")},
        Settings: {},
    }[made]  # fmt: skip
    with pytest.warns(DeprecationWarning, match=f"'{old}' is called '{new}' now"):
        found = made(**more, **{old: value})
    assert getattr(found, new) == value
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, old) == value


def test_what_has_its_present_name_is_left_alone() -> None:
    told: list[str] = []
    assert renamed({"a": 1, "b": 2}, {"old": "b"}, told.append) == {"a": 1, "b": 2}
    assert told == []
