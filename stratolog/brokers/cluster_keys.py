"""The keys and secrets of a cluster whose processes run elsewhere than the authority: in containers, on other machines.

Made from the settings, which name all processes and where they are reached. The authority stays in the data directory,
and what processes need is copied to a folder that they can mount or be sent, with names that say whose it is::

    ca.pem                       whom everybody trusts
    ROLE-NAME.pem                key and certificate of a process (ROLE om, datanode, broker, audit, admin)
    broker-NAME.p12              the same for a broker, which Java reads
    cluster-secret               of nodes, datanodes and operators
    audit.credentials            what the audit signs its questions with

All but ``ca.pem`` is encrypted under the key-encryption key (decision 0075), which is a file elsewhere. What is right
stays as it is; a certificate with a third of its time left is renewed. So the command is given again, daily, and
whoever reads a file finds the old one or the new one whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from schemas.access.credentials import auditor_credentials
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.sealed import CREDENTIALS
from stratolog.brokers.at_rest import ensure_key
from stratolog.brokers.identities import AUDIT_NAME, authority_of, broker_name
from stratolog.brokers.secure_listeners import OPERATOR
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.security.authority import Authority
from stratolog.security.key_encryption import default_file
from stratolog.security.private_files import read_private, write_private
from stratolog.security.revocation import CA_FILE

SECRET_NAME = "cluster-secret"  # noqa: S105 - a file's name
CREDENTIALS_NAME = "audit.credentials"


def holders(settings: Settings) -> Iterator[tuple[PeerIdentity, tuple[str, ...]]]:
    """Yield who needs a certificate, with the hosts at which it is reached; raises UsageError for too few addresses."""
    servers = [settings.bootstrap_servers, settings.node_bootstrap_servers or settings.bootstrap_servers]
    hosts = [[address.rpartition(":")[0] for address in one.split(",")] for one in servers]
    if any(len(one) != settings.brokers for one in hosts):
        raise UsageError(
            f"there are {settings.brokers} brokers, and the settings 'bootstrap_servers' and 'node_bootstrap_servers' "
            f"name {len(hosts[0])} and {len(hosts[1])}: each broker needs its certificate, so all must be named"
        )
    for number, own in enumerate(zip(*hosts, strict=True), start=1):
        yield PeerIdentity(name=broker_name(number), role=Role.BROKER), tuple(dict.fromkeys(own))
    for node in settings.nodes:
        yield PeerIdentity(name=node.name, role=Role.OM), (node.host,)
    for datanode in settings.datanodes:
        yield PeerIdentity(name=datanode.name, role=Role.DATANODE), (datanode.host,)
    yield PeerIdentity(name=AUDIT_NAME, role=Role.AUDIT), ()
    yield PeerIdentity(name=OPERATOR, role=Role.ADMIN), ()


def make_cluster_keys(settings: Settings, folder: Path) -> list[Path]:
    """Make what is missing, and renew what is due; return the files in ``folder`` that are new or have changed.

    Raises UsageError if something cannot be written, or a key that is needed is missing.
    """
    key_file = settings.key_encryption_file or default_file(settings.data_dir)
    settings = replace(settings, key_encryption_file=key_file)
    ensure_key(settings, key_file)
    authority = authority_of(settings.data_dir, settings.cluster, key_file)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    wanted = {CA_FILE: authority.ca_file.read_bytes()}
    for holder, hosts in holders(settings):
        wanted |= _certificate(authority, holder, hosts, folder)
    done = [folder / name for name, content in wanted.items() if _put(folder / name, content)]
    secret = folder / SECRET_NAME
    if make_secret(secret, settings.keys()):
        done.append(secret)
    credentials = folder / CREDENTIALS_NAME
    if not credentials.exists():
        own = replace(settings, cluster_secret_file=secret)
        text = auditor_credentials(own.secret()).text().encode()
        keys = settings.keys()
        write_private(credentials, text if keys is None else keys.seal(CREDENTIALS, text))
        done.append(credentials)
    return done


def _certificate(
    authority: Authority, holder: PeerIdentity, hosts: tuple[str, ...], folder: Path
) -> dict[str, bytes]:  # fmt: skip
    """Certify a holder; return its files, by name."""
    issued = authority.certify(holder, hosts, now_s=int(time.time()))
    found = {issued.path.name: read_private(issued.path) or b""}
    if holder.role is Role.BROKER:
        store = issued.path.with_suffix(".p12")
        # Every key store is another file of bytes: it is made anew with its certificate alone.
        if issued.reason is not None or not store.exists() or not (folder / store.name).exists():
            store = authority.key_store(holder)
        found[store.name] = read_private(store) or b""
    return found


def _put(path: Path, content: bytes) -> bool:
    if read_private(path) == content:
        return False
    write_private(path, content)
    return True
