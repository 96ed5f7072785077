"""What a broker is told so that it knows who asks."""

from __future__ import annotations

from pathlib import Path

from stratolog.brokers.secure_listeners import BrokerIdentity, listener_properties


def properties() -> dict[str, str]:
    own = BrokerIdentity(name="broker-1", key_store=Path("/k.pem"), trust_store=Path("/ca.pem"))
    return dict(listener_properties(own, ("broker-1",), users="h:1", nodes="h:2", controller="h:3", heap_mib=512))


def test_brokers_speak_tls_1_3_alone_at_every_listener():
    found = properties()
    versions = {
        name: value for name, value in found.items() if name.endswith(("ssl.protocol", "ssl.enabled.protocols"))
    }
    assert versions == {"ssl.protocol": "TLSv1.3", "ssl.enabled.protocols": "TLSv1.3"}
    assert {one.rpartition(":")[2] for one in found["listener.security.protocol.map"].split(",")} == {"SASL_SSL", "SSL"}
