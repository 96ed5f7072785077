"""All settings as one frozen object, and what follows from them; ``stratolog.configuration.loading`` makes it.

The settings themselves are declared in ``schemas.settings.table``. An unknown name is an error, in the file and in the
environment. So is a value of the wrong type or out of range. The message names the setting, the value and where it was
found.

In the file ``nodes``, ``datanodes``, ``racks`` and ``kafka`` are tables (``om1 = "127.0.0.1:9871"``), ``pipelines`` an
array; in the environment all but ``kafka`` are separated by commas (``om1=127.0.0.1:9871,om2=...``), and an empty table
is ``none``. ``stratolog.configuration.node_configs`` makes configurations of nodes from the settings.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.kafka.connection import BadKafkaSetting, KafkaConnection, connection
from schemas.settings.declaring import OldSettingName, renamed, with_old_names
from schemas.settings.table import AUTH_SIGNED, GROUPS, OLD_NAMES, AllSettings
from schemas.settings.values import DEFAULT_RACK, DatanodeAddress, NodeAddress
from stratolog.configuration.places import STACK_FILES, user_name
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from schemas.access.credentials import Credentials
    from schemas.privilege import ClusterSecret
    from schemas.security.tls import ProcessTls, TlsFiles
    from stratolog.security.key_encryption import KeyEncryption


PREFIX = "STRATOLOG_"
TABLES = ("nodes", "datanodes", "racks", "kafka")
"""Settings that are tables in the file."""
KAFKA_PREFIX = "kafka_"
"""Variables of single ``kafka.*`` settings: STRATOLOG_KAFKA_SASL_USERNAME is ``sasl.username`` of ``[kafka]``."""
SECRET_FILE = "cluster-secret"  # noqa: S105 - where it is, not what it is
DECLARED = {one.name: one for group in GROUPS for one in fields(group)}
"""The field of each setting."""
NAMES = tuple(DECLARED)


def default_datanodes(count: int) -> tuple[DatanodeAddress, ...]:
    """Return ``count`` datanodes of this machine, dn1 to dnN."""
    numbers = range(1, count + 1)
    return tuple(DatanodeAddress(name=f"dn{n}", host="127.0.0.1", port=9900 + n, http_port=10_000 + n) for n in numbers)


@with_old_names(OLD_NAMES)
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(AllSettings):
    """Every setting of the command, the local stack, the nodes, the audit and the clients.

    Raises UsageError for a wrong value, naming the setting.
    """

    explicit: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the settings that the file or the environment gave; the others are defaults."""

    def __post_init__(self) -> None:
        """Say who asks if nobody did, and check the values; a datanode must not count as dead between heartbeats."""
        if not self.caller:
            object.__setattr__(self, "caller", user_name())
        try:
            self.check_settings()
        except ValueError as error:
            raise UsageError(str(error)) from error
        if self.datanode_heartbeat_interval_ms > self.datanode_timeout_ms:
            raise UsageError(
                f"setting 'datanode_heartbeat_interval_ms' is {self.datanode_heartbeat_interval_ms}: it must be at most "
                f"'datanode_timeout_ms', which is {self.datanode_timeout_ms}"
            )

    @property
    def connection(self) -> KafkaConnection:
        """How this process reaches the brokers; raises UsageError for settings or files that cannot be used."""
        try:
            found = connection(self.node_bootstrap_servers or self.bootstrap_servers, dict(self.kafka))
            found.check_files()
        except BadKafkaSetting as error:
            raise UsageError(f"setting {error}") from error
        return found

    @property
    def secret_file(self) -> Path:
        """Where the cluster's secret is."""
        return self.cluster_secret_file or self.data_dir / SECRET_FILE

    def secret(self) -> ClusterSecret:
        """Return the cluster's secret; raises UsageError, with the remedy, if there is none."""
        from stratolog.configuration.cluster_secret import read_secret

        return read_secret(self.secret_file, self.key_encryption_file)

    def keys(self) -> KeyEncryption | None:
        """Return the key-encryption key, None if secrets are in clear."""
        from stratolog.security.key_encryption import KeyEncryption

        return None if self.key_encryption_file is None else KeyEncryption(self.key_encryption_file)

    def tls_files(self) -> TlsFiles | None:
        """Return the files of this process's TLS, None if it speaks in clear; raises UsageError."""
        from stratolog.configuration.tls import tls_files_of

        return tls_files_of(
            self.tls_ca_file, self.tls_certificate_file, self.tls_key_file, self.key_encryption_file
        )  # fmt: skip

    def tls(self) -> ProcessTls | None:
        """Return how this process speaks TLS, None if it speaks in clear; raises UsageError for unusable files."""
        from stratolog.configuration.tls import process_tls

        return process_tls(self.tls_files())

    def credentials(self) -> Credentials | None:
        """Return what the command signs with, None for nothing; raises UsageError if the file cannot be used."""
        from stratolog.configuration.credentials import read_credentials

        if self.credentials_file is not None:
            return read_credentials(self.credentials_file, self.key_encryption_file)
        if self.auth != AUTH_SIGNED:
            return None
        from schemas.access.credentials import operator_credentials

        return operator_credentials(self.secret())

    def own_hosts(self) -> frozenset[str]:
        """Return the names by which the HTTP servers of nodes and datanodes may be asked."""
        own = [node.host for node in self.nodes] + [node.host for node in self.datanodes]
        return frozenset((*self.http_hosts, *map(str.lower, own)))

    def node(self, name: str) -> NodeAddress:
        """Return a node's address; raises UsageError for a name that is not in ``nodes``."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise UsageError(f"no node {name!r} in the setting 'nodes'; there is: {known}")

    def node_folder(self, name: str) -> Path:
        """Return where the node ``name`` keeps its databases; raises UsageError for an unknown name."""
        return self.data_dir / "nodes" / self.node(name).name

    def datanode(self, name: str) -> DatanodeAddress:
        """Return a datanode's addresses; raises UsageError for a name that is not in ``datanodes``."""
        for node in self.datanodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.datanodes) or "none"
        raise UsageError(f"no datanode {name!r} in the setting 'datanodes'; there is: {known}")

    def rack_of(self, datanode: str) -> str:
        """Return the rack that a datanode stands in."""
        return dict(self.racks).get(datanode, DEFAULT_RACK)

    def with_values(self, **changes: Any) -> Settings:
        """Return these settings with some replaced, as a command line option does; None leaves one as it is."""
        given = {name: value for name, value in changes.items() if value is not None}
        checked = read_settings(given, "the command line")
        return replace(self, **checked, explicit=self.explicit | set(checked))

    def to_toml(self) -> str:
        """Return the settings as a file that :func:`loading.load_settings` reads back.

        Older software, to which a user may go back, refuses names that it does not know. So names that are new are left
        out while they have their default, and renamed settings have their old name for one release.
        """
        old = {new: name for name, new in OLD_NAMES.items()}
        plain = {
            old.get(name, name): getattr(self, name) for name in NAMES if name not in TABLES and self._is_told(name)
        }
        lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
        lines += ["", "[nodes]", *(f"{_toml(node.name)} = {_toml(node.address)}" for node in self.nodes)]
        lines += ["", "[datanodes]"]
        lines += [f"{_toml(node.name)} = {_toml(f'{node.address}:{node.http_port}')}" for node in self.datanodes]
        lines += ["", "[racks]", *(f"{_toml(node)} = {_toml(where)}" for node, where in self.racks)]
        if self.kafka:
            lines += ["", "[kafka]", *(f"{name} = {_toml(value)}" for name, value in self.kafka)]
        return "\n".join(lines) + "\n"

    def _is_told(self, name: str) -> bool:
        return not (DECLARED[name].metadata["is_new"] and getattr(self, name) == DECLARED[name].default)


def read_settings(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Read what a file or the command line gave, or raise UsageError."""
    return {name: read_setting(name, value, source) for name, value in present(given, OLD_NAMES, source).items()}


def present(given: Mapping[str, Any], names: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return what was given under present names (``renamed``); each old name is told of, but not in our own files.

    Raises UsageError for a setting that is given under both names.
    """

    def tell(words: str) -> None:
        if Path(source).name not in STACK_FILES:
            warnings.warn(f"{words} (in {source})", OldSettingName, stacklevel=5)

    try:
        return renamed(given, names, tell)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error


def read_setting(given_name: str, value: Any, source: str) -> Any:
    """Read one value, or raise UsageError; ``given_name`` is the setting as written, with capitals and prefix."""
    in_environment = given_name.startswith(PREFIX)
    name = given_name.removeprefix(PREFIX).lower() if in_environment else given_name
    if in_environment and name.startswith(KAFKA_PREFIX):
        name, value = "kafka", {name.removeprefix(KAFKA_PREFIX).replace("_", "."): value}
    if name not in DECLARED:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean '{PREFIX + near[0].upper() if in_environment else near[0]}'?" if near else ""
        raise UsageError(f"unknown setting '{given_name}' in {source}{hint}")
    try:
        return DECLARED[name].metadata["read"](value)
    except ValueError as error:
        raise UsageError(f"setting '{given_name}' in {source}: {error}") from error


def _toml(value: Any) -> str:
    """Return a value in TOML; strings and arrays of strings are written as JSON writes them."""
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
