"""Settings of every client of Kafka, made from a connection: for librdkafka (confluent-kafka), for Java and for Spark.

Settings hold passwords: they go to the client's constructor, never into a log, an error, a file or a command line.
aiokafka takes objects instead of texts (``replicated_db/shell/kafka/credentials.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.kafka.connection import (
    CA_FILE,
    CERTIFICATE_FILE,
    IN_FILES,
    KEY_FILE,
    MECHANISM,
    NAMES,
    SCRAM,
    USERNAME,
    BadKafkaSetting,
    Brokers,
    KafkaConnection,
    connection,
)
from schemas.security.sealed import CannotOpen, plain_key_text

SERVERS = "bootstrap.servers"
SPARK_PREFIX = "kafka."
LOGIN_MODULES: Mapping[str, str] = {"PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule"}
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
SCRAM_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def client_settings(brokers: Brokers, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return librdkafka's settings of a client that has its ``own`` ones besides; raises BadKafkaSetting."""
    made = connection(brokers)
    plain = {name: value for name, value in made.options if name not in IN_FILES.values()}
    settings: dict[str, Any] = {SERVERS: made.servers, **plain}
    if made.has_sasl:
        settings |= {MECHANISM: made.mechanism, "sasl.password": made.password()}
    if password := made.key_password():
        settings["ssl.key.password"] = password
    return settings | dict(own or {})


def spark_options(brokers: Brokers) -> dict[str, str]:
    """Return the options of Spark's Kafka source that reach the brokers; raises BadKafkaSetting."""
    return {f"{SPARK_PREFIX}{name}": value for name, value in java_settings(brokers).items()}


def java_settings(brokers: Brokers) -> dict[str, str]:
    """Return the settings of a Java client; raises BadKafkaSetting. Certificates and keys stay in PEM."""
    made = connection(brokers)
    found = {SERVERS: made.servers}
    found |= {NAMES[name].java: value for name, value in made.options if NAMES[name].java}
    if made.has_sasl:
        found |= {MECHANISM: made.mechanism, "sasl.jaas.config": _jaas(made)}
    return found | (_java_tls(made) if made.has_tls else {})


def _java_tls(made: KafkaConnection) -> dict[str, str]:
    found = {"ssl.endpoint.identification.algorithm": "https" if made.verifies_names else ""}
    if made.get(CA_FILE):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": made.get(CA_FILE)}
    if password := made.key_password():
        # Java 17 has no name for the encryption of OpenSSL's keys (PBES2), so it gets the key itself, in memory.
        found |= _decrypted(made, password)
    elif made.get(KEY_FILE) and made.get(KEY_FILE) == made.get(CERTIFICATE_FILE):
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": made.get(KEY_FILE)}
    elif made.get(KEY_FILE):
        # Java wants both in one file, or as texts.
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(made.get(CERTIFICATE_FILE)).read_text(),
            "ssl.keystore.key": Path(made.get(KEY_FILE)).read_text(),
        }
    return found


def _decrypted(made: KafkaConnection, password: str) -> dict[str, str]:
    try:
        key = plain_key_text(Path(made.get(KEY_FILE)).read_bytes(), [password.encode()])
    except (OSError, CannotOpen) as error:
        raise BadKafkaSetting(f"kafka.{KEY_FILE}: {made.get(KEY_FILE)}: {error}") from error
    chain = "".join(CERTIFICATE.findall(Path(made.get(CERTIFICATE_FILE)).read_text()))
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _jaas(made: KafkaConnection) -> str:
    module = SCRAM_LOGIN_MODULE if made.mechanism.startswith(SCRAM[:6]) else LOGIN_MODULES[made.mechanism]
    return f'{module} required username="{_quoted(made.get(USERNAME))}" password="{_quoted(made.password())}";'


def _quoted(text: str) -> str:
    """Return a text as JAAS wants it between quotation marks."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def properties_text(settings: Mapping[str, str]) -> str:
    """Return a Java properties file; its characters are Latin-1, as Java reads it."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def _escaped(value: str) -> str:
    escapes: Mapping[str, str] = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    text = "".join(escapes.get(one, one if " " <= one <= "~" else _unicode(one)) for one in value)
    return f"\\{text}" if text.startswith(" ") else text


def _unicode(character: str) -> str:
    code = character.encode("utf-16-be").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))
