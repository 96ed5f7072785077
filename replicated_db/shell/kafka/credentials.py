"""How a Faust app proves itself to the brokers, and they to it: aiokafka takes objects where others take texts."""

from __future__ import annotations

import ssl

from faust.auth import Credentials, SASLCredentials, SSLCredentials

from schemas.kafka.connection import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    USERNAME,
    BadKafkaSetting,
    Brokers,
    KafkaConnection,
    connection,
)


def faust_credentials(brokers: Brokers) -> Credentials | None:
    """Return the credentials of a connection, None for open brokers; raises BadKafkaSetting naming setting and file."""
    made = connection(brokers)
    context = tls_context(made) if made.has_tls else None
    if made.has_sasl:
        return SASLCredentials(
            username=made.get(USERNAME), password=made.password(), mechanism=made.mechanism, ssl_context=context
        )
    return None if context is None else SSLCredentials(context)


def tls_context(made: KafkaConnection) -> ssl.SSLContext:
    """Return the context of a client's TLS; raises BadKafkaSetting."""
    try:
        context = ssl.create_default_context(cafile=made.get(CA_FILE) or None)
    except (OSError, ValueError) as error:
        raise BadKafkaSetting(f"kafka.{CA_FILE}: {made.get(CA_FILE)} holds no certificates: {error}") from error
    context.check_hostname = made.verifies_names
    if key := made.get(KEY_FILE):
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(made.get(CERTIFICATE_FILE), key, made.key_password())
        except (OSError, ValueError) as error:
            raise BadKafkaSetting(
                f"kafka.{KEY_FILE}: {key} and {made.get(CERTIFICATE_FILE)} are no key and its certificate: {error}"
            ) from error
    return context
