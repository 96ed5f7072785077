"""A connection to Kafka's brokers: their addresses, and how a client proves who it is. No secret is in it, only files.

A program gives ``kafka.*`` settings by the names of librdkafka (``NAMES``); passwords are in files. Any other name is
refused: the log contract depends on how our clients are set (``acks``, ``isolation.level`` …), so no user sets that.

Wherever a function takes ``Brokers`` it takes plain addresses too: brokers that ask nobody who he is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.codecs.decimals import decimal_of
from schemas.security.sealed import CannotOpen, is_sealed, next_file, password_that_opens

PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
SCRAM = "SCRAM-SHA-512"
MECHANISMS = (SCRAM, "SCRAM-SHA-256", "PLAIN")

PROTOCOL = "security.protocol"
MECHANISM = "sasl.mechanism"
USERNAME = "sasl.username"
PASSWORD_FILE = "sasl.password.file"  # noqa: S105 - where it is, not what it is
CA_FILE = "ssl.ca.location"
CERTIFICATE_FILE = "ssl.certificate.location"
KEY_FILE = "ssl.key.location"
KEY_PASSWORD_FILE = "ssl.key.password.file"  # noqa: S105 - where it is, not what it is
VERIFY_NAMES = "ssl.endpoint.identification.algorithm"

FILES = (PASSWORD_FILE, CA_FILE, CERTIFICATE_FILE, KEY_FILE, KEY_PASSWORD_FILE)
"""Settings that are paths."""
SECRETS = (PASSWORD_FILE, KEY_FILE, KEY_PASSWORD_FILE)
"""Files that nobody but their owner may read."""
IN_FILES = {"sasl.password": PASSWORD_FILE, "ssl.key.password": KEY_PASSWORD_FILE}
"""What librdkafka takes as a text, and we take from a file."""

MAX_SECRET_BYTES = 4_096
"""The largest file that is read as a password."""
MAX_VALUE_CHARACTERS = 4_096
OTHERS = 0o077
"""Bits of a file's mode that let others than its owner at it."""


class BadKafkaSetting(ValueError):
    """A ``kafka.*`` setting that cannot be used; the text names it."""


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        for one in allowed:
            if value.upper() == one.upper():
                return one
        raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")

    return read


def _milliseconds(value: str) -> str:
    if not decimal_of(value, 86_400_000):
        raise ValueError(f"must be milliseconds, 1 to 86400000, not {value!r}")
    return value


def _text(value: str) -> str:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaName:
    """One ``kafka.*`` setting: how its value is checked, and its name in Java, empty if Java has none."""

    read: Callable[[str], str]
    java: str = ""
    doc: str


NAMES: Mapping[str, KafkaName] = {
    PROTOCOL: KafkaName(read=_one_of(*PROTOCOLS), java=PROTOCOL, doc="PLAINTEXT (default), SSL, SASL_PLAINTEXT, SASL_SSL"),
    MECHANISM: KafkaName(read=_one_of(*MECHANISMS), java=MECHANISM, doc="SCRAM-SHA-512 (default), SCRAM-SHA-256, PLAIN"),
    USERNAME: KafkaName(read=_text, doc="the user, with SASL"),
    PASSWORD_FILE: KafkaName(read=_text, doc="file with the user's password; its owner alone may read it (mode 0600)"),
    CA_FILE: KafkaName(read=_text, doc="file with the certificates of the CAs that brokers' certificates are from (PEM)"),
    CERTIFICATE_FILE: KafkaName(read=_text, doc="file with the client's own certificate (PEM)"),
    KEY_FILE: KafkaName(read=_text, doc="file with the client's private key (PEM, mode 0600)"),
    KEY_PASSWORD_FILE: KafkaName(read=_text, doc="file with the password of that key (mode 0600)"),
    VERIFY_NAMES: KafkaName(
        read=_one_of("https", "none"),
        doc="https (default): a broker's certificate must name its host; none: only the CA counts",
    ),
    "client.rack": KafkaName(read=_text, java="client.rack", doc="where this client stands, for brokers that have racks"),
    "client.dns.lookup": KafkaName(
        read=_one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"), java="client.dns.lookup",
        doc="how a broker's name is looked up",
    ),
    "broker.address.family": KafkaName(read=_one_of("any", "v4", "v6"), doc="IP versions that are used (not by Java)"),
    "connections.max.idle.ms": KafkaName(
        read=_milliseconds, java="connections.max.idle.ms", doc="an idle connection is closed after this time"
    ),
    "socket.connection.setup.timeout.ms": KafkaName(
        read=_milliseconds, java="socket.connection.setup.timeout.ms",
        doc="how long a connection may take to be made, TLS and SASL included",
    ),
    "socket.keepalive.enable": KafkaName(read=_one_of("true", "false"), doc="TCP keep-alive (not by Java)"),
}  # fmt: skip
"""All ``kafka.*`` settings, by librdkafka's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Brokers and how to reach them; make one with :func:`connection`. ``options`` are checked ``kafka.*`` settings."""

    servers: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the addresses, as error messages name them."""
        return self.servers

    def get(self, name: str) -> str:
        """Return a setting, empty if it is not given."""
        return dict(self.options).get(name, "")

    @property
    def protocol(self) -> str:
        """One of PROTOCOLS."""
        return self.get(PROTOCOL) or PLAINTEXT

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether the client proves itself by a password."""
        return self.protocol in (SASL_SSL, SASL_PLAINTEXT)

    @property
    def mechanism(self) -> str:
        """One of MECHANISMS."""
        return self.get(MECHANISM) or SCRAM

    @property
    def verifies_names(self) -> bool:
        """Whether a broker's certificate must name the broker's host."""
        return self.get(VERIFY_NAMES) != "none"

    def password(self) -> str:
        """Read the user's password; raises BadKafkaSetting naming the file."""
        return secret_text(PASSWORD_FILE, self.get(PASSWORD_FILE))

    def key_password(self) -> str:
        """Read the password of the private key, empty if none is named; raises BadKafkaSetting."""
        path = self.get(KEY_PASSWORD_FILE)
        if not path:
            return ""
        first = secret_text(KEY_PASSWORD_FILE, path)
        if not (following := next_file(Path(path))).exists():
            return first
        # Keys are being encrypted under another password: this one is under either.
        either = [one.encode() for one in (first, secret_text(KEY_PASSWORD_FILE, str(following)))]
        try:
            return password_that_opens(Path(self.get(KEY_FILE)).read_bytes(), either).decode()
        except (OSError, CannotOpen) as error:
            raise BadKafkaSetting(f"kafka.{KEY_FILE}: {self.get(KEY_FILE)}: {error}") from error

    def check_files(self) -> None:
        """Raise BadKafkaSetting naming a file that is missing, unreadable, or a secret that others may read."""
        for name in FILES:
            if path := self.get(name):
                _check_file(name, path)


Brokers = str | KafkaConnection
"""Addresses (``host:port``, separated by commas) of open brokers, or a connection."""


def connection(servers: Brokers, options: Mapping[str, object] | None = None) -> KafkaConnection:
    """Return a checked connection; raises BadKafkaSetting naming what is unknown, wrong or missing.

    ``options`` are ``kafka.*`` settings, without that prefix or with it.
    """
    if isinstance(servers, KafkaConnection):
        if options:
            raise BadKafkaSetting("kafka: a connection has its settings already")
        return servers
    if options is not None and not isinstance(options, Mapping):
        raise BadKafkaSetting(f"kafka must be a mapping of settings, not {type(options).__name__}")
    given = dict(read_option(name, value) for name, value in (options or {}).items())
    found = KafkaConnection(servers=servers, options=tuple(sorted(given.items())))
    _check_together(found)
    return found


def read_option(name: object, value: object) -> tuple[str, str]:
    """Return one ``kafka.*`` setting, checked by itself; raises BadKafkaSetting. No value of a secret is repeated."""
    plain = str(name).removeprefix("kafka.")
    if plain in IN_FILES:
        raise BadKafkaSetting(f"kafka.{plain} is taken from a file: give kafka.{IN_FILES[plain]}")
    if plain not in NAMES:
        raise BadKafkaSetting(f"kafka.{plain} is no setting that can be given; there are: {', '.join(NAMES)}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str | int | Path) or not text.strip() or len(text) > MAX_VALUE_CHARACTERS:
        raise BadKafkaSetting(f"kafka.{plain} must be a text, not empty, of at most {MAX_VALUE_CHARACTERS} characters")
    if not text.isprintable():
        raise BadKafkaSetting(f"kafka.{plain} must be printable")
    try:
        return plain, NAMES[plain].read(text.strip())
    except ValueError as error:
        raise BadKafkaSetting(f"kafka.{plain} {error}") from error


def _check_together(found: KafkaConnection) -> None:
    """Raise BadKafkaSetting for settings that contradict each other: none is ignored in silence."""
    if found.has_sasl:
        for name in (USERNAME, PASSWORD_FILE):
            if not found.get(name):
                raise BadKafkaSetting(f"kafka.{PROTOCOL} = {found.protocol} needs kafka.{name}")
    else:
        _refuse_unused(found, (MECHANISM, USERNAME, PASSWORD_FILE), "SASL_SSL or SASL_PLAINTEXT")
    if not found.has_tls:
        _refuse_unused(found, (CA_FILE, CERTIFICATE_FILE, KEY_FILE, KEY_PASSWORD_FILE, VERIFY_NAMES), "SSL or SASL_SSL")
    if bool(found.get(CERTIFICATE_FILE)) != bool(found.get(KEY_FILE)):
        raise BadKafkaSetting(f"kafka.{CERTIFICATE_FILE} and kafka.{KEY_FILE} belong together: give both or none")
    if found.get(KEY_PASSWORD_FILE) and not found.get(KEY_FILE):
        raise BadKafkaSetting(f"kafka.{KEY_PASSWORD_FILE} needs kafka.{KEY_FILE}")


def _refuse_unused(found: KafkaConnection, names: tuple[str, ...], protocols: str) -> None:
    for name in names:
        if found.get(name):
            raise BadKafkaSetting(
                f"kafka.{name} needs kafka.{PROTOCOL} = {protocols}; it is {found.protocol}, which would ignore it"
            )


def secret_text(name: str, path: str) -> str:
    """Read a secret from a file, without the line's end; raises BadKafkaSetting naming setting and file."""
    _check_file(name, path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise BadKafkaSetting(f"kafka.{name}: {path}: {error.strerror}") from error
    if is_sealed(content):
        raise BadKafkaSetting(
            f"kafka.{name}: {path} is the cluster's own copy, and encrypted: 'stratolog admin kafka-user hand-out' "
            "writes a user's password into a file for its user"
        )
    if len(content) > MAX_SECRET_BYTES:
        raise BadKafkaSetting(f"kafka.{name}: {path} has more than {MAX_SECRET_BYTES} bytes: that is no password")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # The error itself would repeat bytes of the secret.
        raise BadKafkaSetting(f"kafka.{name}: {path} is no UTF-8 text") from None
    if not text or not text.isprintable():
        raise BadKafkaSetting(f"kafka.{name}: {path} must hold one line of printable characters")
    return text


def _check_file(name: str, path: str) -> None:
    try:
        mode = Path(path).stat().st_mode
        if not Path(path).is_file():
            raise BadKafkaSetting(f"kafka.{name}: {path} is no file")
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise BadKafkaSetting(f"kafka.{name}: {path}: {error.strerror}") from error
    if name in SECRETS and mode & OTHERS:
        raise BadKafkaSetting(
            f"kafka.{name}: others than its owner may read {path} (mode {mode & 0o777:04o}): chmod 600 it"
        )
