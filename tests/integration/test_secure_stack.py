"""A secure stack on a real broker: who is let in, who may do what, with which words all others are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from om_processors.fleet.datanode_client import ask
from producers import Client
from producers.errors import NotConnected
from schemas.kafka.access import KafkaPrincipal
from schemas.kafka.client_settings import client_settings
from schemas.records.datanode import ClosePipeline
from schemas.records.verdict_words import DIVERGED, EQUAL
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles
from schemas.settings.values import NodeAddress
from stratolog.brokers import at_rest
from stratolog.brokers.access_rules import are_acls_kept, ensure_access
from stratolog.brokers.admission import admin_of
from stratolog.brokers.identities import member_options
from stratolog.brokers.kafka_users import users
from stratolog.cluster.verdicts import VerdictReader
from stratolog.errors import UsageError
from stratolog.local import stack, state
from stratolog.local.ports import free_ports
from stratolog.security.authority import open_authority
from stratolog.security.key_encryption import KeyEncryption
from stratolog.security.private_files import write_private
from tests.support.local.secure_stack import SecureStack, read_error, secure_settings, write_error
from tests.support.local.tokened_stack import check_block_tokens
from tests.support.sdk.small_files import check_written, write_until_reserved
from transport.datanodes.core.failures import DatanodeFailed
from transport.waiting.deadline import Deadline

pytestmark = pytest.mark.integration

DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
REFUSED_WITHIN_S = 15.0


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    found = SecureStack.start(tmp_path_factory.mktemp("secure"))
    yield found
    found.close()


def code_of(error: KafkaError | None) -> int | None:
    return None if error is None else error.code()


def test_a_user_writes_a_key_and_reads_it(secure):
    with Client(secure.servers, kafka=secure.user("alice"), tls=secure.tls("alice"), deadline_ms=60_000) as client:
        client.create_volume("vol1")
        client.create_bucket("vol1", "bucket1")
        for name, size in (("small", 100), ("large", 300_000)):
            content = os.urandom(size)
            with client.open(f"/vol1/bucket1/{name}", "wb") as file:
                file.write(content)
            with client.open(f"/vol1/bucket1/{name}") as file:
                assert file.read() == content
        # Reserved blocks have tokens as all others.
        check_written(client, write_until_reserved(client, "/vol1/bucket1/many"))


@pytest.mark.slow
def test_block_tokens_are_demanded_and_a_roll_ends_those_of_before(secure):
    check_block_tokens(secure)


def test_a_user_writes_requests_and_reads_his_own_responses_alone(secure):
    alice = secure.as_user("alice")
    written = ("om.log", "om.responses", "om.responses.alice", "om.responses.bob", "om.audit", "om.verdicts", "dn.log",
               "dn.heartbeats", "dn.audit", "om.requests.rejected")  # fmt: skip
    assert {topic: code_of(write_error(alice, topic)) for topic in written} == dict.fromkeys(written, DENIED)
    read = ("om.log", "om.requests", "om.responses", "om.responses.bob", "om.audit", "dn.log", "om.verdicts")
    assert {topic: code_of(read_error(alice, topic)) for topic in read} == dict.fromkeys(read, DENIED)
    assert read_error(alice, "om.responses.alice") is None


def test_members_write_their_own_logs_alone(secure):
    om1, dn1 = secure.as_member(Role.OM, "om1"), secure.as_member(Role.DATANODE, "dn1")
    audit = secure.as_member(Role.AUDIT, "audit")
    assert code_of(write_error(om1, "dn.log")) == DENIED
    assert code_of(write_error(om1, "om.verdicts")) == DENIED
    for topic in ("om.log", "om.requests", "om.responses", "om.audit"):
        assert code_of(write_error(dn1, topic)) == DENIED
    for topic in ("om.log", "dn.log", "om.audit", "dn.audit", "om.requests"):
        assert code_of(write_error(audit, topic)) == DENIED
    # A name that nobody was let in with may do nothing, whatever its role.
    assert code_of(write_error(secure.as_member(Role.OM, "om9"), "om.log")) == DENIED
    assert code_of(read_error(secure.as_member(Role.CLIENT, "mallory"), "om.responses.alice")) == DENIED


def test_a_clients_certificate_writes_nothing_to_the_brokers(secure):
    """Nor does it once it is revoked: brokers do not look at the list. The user of that name has a password."""
    alice = secure.as_member(Role.CLIENT, "alice")
    assert {topic: code_of(write_error(alice, topic)) for topic in ("om.requests", "om.log")} == dict.fromkeys(
        ("om.requests", "om.log"), DENIED
    )
    assert code_of(read_error(alice, "om.responses.alice")) == DENIED
    assert read_error(secure.as_user("alice"), "om.responses.alice") is None


def test_no_port_of_the_brokers_speaks_older_tls(secure):
    ports = [(host, port) for name, host, port in listening(secure) if name == "broker-1"]
    assert len(ports) >= 3

    def version_of(host: str, port: int, wanted: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=secure.authority.ca_file)
        context.minimum_version = context.maximum_version = wanted
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host.removeprefix("::ffff:")
        try:
            with socket.create_connection((reached, port), 5) as sock:
                with context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
                    return tls.version()
        except OSError:
            return None

    assert [version_of(*one, ssl.TLSVersion.TLSv1_2) for one in ports] == [None] * len(ports)
    assert [version_of(*one, ssl.TLSVersion.TLSv1_3) for one in ports] == ["TLSv1.3"] * len(ports)


def test_a_user_changes_no_topics_rights_or_users(secure):
    admin = admin_of(secure.as_user("alice"))
    with pytest.raises(KafkaException, match="uthorization"):
        admin.create_topics([NewTopic("mine", 1, 1)], request_timeout=10)["mine"].result()
    with pytest.raises(Exception, match="uthorization"):
        users(admin)
    with pytest.raises(Exception, match="uthorization"):
        are_acls_kept(admin)


def refusal(servers: str, kafka: Mapping[str, object] | None) -> str:
    begun_s = time.monotonic()
    with pytest.raises(NotConnected) as caught:
        Client(servers, kafka=kafka, connect_timeout_ms=8_000)
    assert time.monotonic() - begun_s < REFUSED_WITHIN_S
    return str(caught.value)


def test_who_does_not_prove_himself_is_told_what_is_wrong(secure, tmp_path):
    alice = dict(secure.user("alice"))
    foreign = open_authority(tmp_path / "foreign", cluster="other", now_s=int(time.time()))
    wrong = tmp_path / "wrong.password"
    wrong.write_text("no password of anybody")
    wrong.chmod(0o600)
    assert "kafka.security.protocol is PLAINTEXT: perhaps the brokers want TLS" in refusal(secure.servers, None)
    said = refusal(secure.servers, alice | {"sasl.password.file": str(wrong)})
    assert "user 'alice' was refused" in said
    assert "kafka.sasl.password.file" in said
    assert "no password of anybody" not in said
    said = refusal(secure.servers, alice | {"ssl.ca.location": str(foreign.ca_file)})
    assert "kafka.ssl.ca.location" in said
    said = refusal(secure.servers, alice | {"sasl.username": "nobody"})
    assert "user 'nobody' was refused" in said
    tls_alone = {"security.protocol": "SSL", "ssl.ca.location": alice["ssl.ca.location"]}
    assert "SSL" in refusal(secure.servers, tls_alone)
    assert refusal(secure.node_servers, tls_alone)


def test_a_certificate_of_another_authority_is_refused(secure, tmp_path):
    foreign = open_authority(tmp_path / "foreign", cluster="other", now_s=int(time.time()))
    options = dict(member_options(foreign, Role.OM, "om1"))
    assert refusal(secure.node_servers, options | {"ssl.ca.location": str(secure.authority.ca_file)})


def test_commands_reach_a_secure_stack(secure):
    for words in (("status",), ("topics", "ensure"), ("admin", "kafka-user", "list"), ("sh", "volume", "list")):
        done = secure.stratolog(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    file = str(secure.password_file("alice"))
    again = secure.stratolog("admin", "kafka-user", "add", "alice", "--password-file", file)
    assert "is there already" in again.stdout


def test_a_running_stack_does_not_become_open(secure):
    with pytest.raises(UsageError, match="'stratolog down' first"):
        stack.up(replace(secure.settings, secure=False), detached=False)


def test_no_secret_is_anywhere_but_in_its_file(secure):
    """In the data directory, in no file: those with keys and secrets are encrypted. Nor in a log, ``ps``, a metric."""
    done = secure.stratolog("admin", "kafka-user", "add", "carol")
    assert done.returncode == 0, done.stderr
    file = secure.password_file("carol")
    handed = secure.stratolog("admin", "kafka-user", "hand-out", "carol", "--file", str(file))
    assert handed.returncode == 0, handed.stderr
    folder, key_file = secure.settings.data_dir, secure.settings.key_encryption_file
    assert not key_file.is_relative_to(folder)
    with Client(secure.servers, kafka=secure.user("carol"), tls=secure.tls("carol")) as client:
        client.create_volume("volume-of-carol")
    keys = KeyEncryption(key_file)
    found = list(at_rest.secret_files(secure.settings))
    assert len(found) >= 10
    assert all(one.is_encrypted for one in found)
    secrets = [secure.password_file(name).read_bytes() for name in ("alice", "bob", "carol")]
    for one in found:
        clear = at_rest._clear(one, keys)
        secrets.append(clear.splitlines()[1] if b"PRIVATE KEY" in clear else clear.strip())
    secrets += keys.keys()
    private = (folder / "kafka-users", folder / "authority")
    looked = 0
    for path in [one for one in folder.rglob("*") if one.is_file()]:
        content = path.read_bytes()
        assert not [one for one in secrets if one in content], path
        assert b"BEGIN PRIVATE KEY" not in content, path
        assert path.stat().st_mode & 0o077 == 0 or not any(map(path.is_relative_to, private)), path
        looked += 1
    assert looked > 30
    for process in [one for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        for what in ("cmdline", "environ"):
            try:
                content = (process / what).read_bytes()
            except OSError:
                continue
            assert not [one for one in secrets if one in content], f"{process}/{what}"
    verify = ProcessTls(secure.tls("prometheus")).client()
    metrics = httpx.get(f"https://{secure.settings.nodes[0].address}/metrics", trust_env=False, verify=verify)
    assert metrics.status_code == 200
    said = (metrics.text + done.stdout + done.stderr + handed.stdout).encode()
    assert not [one for one in secrets if one in said]
    for path in private:
        assert path.stat().st_mode & 0o777 == 0o700
    for path in (key_file.parent, key_file):
        assert path.stat().st_mode & 0o077 == 0


def test_a_command_without_the_key_encryption_key_says_so(secure, tmp_path):
    file = secure.settings.key_encryption_file
    elsewhere = tmp_path / "key"
    file.rename(elsewhere)
    try:
        for words in (("sh", "volume", "list"), ("admin", "certificate", "make", "erin"), ("admin", "keys", "rotate")):
            done = secure.stratolog(*words)
            assert done.returncode != 0
            assert "key_encryption_file" in done.stderr
            assert str(file) in done.stderr
            assert "Traceback" not in done.stderr
    finally:
        elsewhere.rename(file)


def test_a_removed_user_is_refused(secure):
    file = ("--password-file", str(secure.password_file("dave")))
    assert secure.stratolog("admin", "kafka-user", "add", "dave", *file).returncode == 0
    kept = secure.password_file("dave").read_text()
    dave = secure.user("dave")
    with Client(secure.servers, kafka=dave, tls=secure.tls("dave")) as client:
        client.create_volume("volume-of-dave")
    assert secure.stratolog("admin", "kafka-user", "remove", "dave", *file).returncode == 0
    assert not secure.password_file("dave").exists()
    secure.password_file("dave").write_text(kept)
    secure.password_file("dave").chmod(0o600)
    assert "user 'dave' was refused" in refusal(secure.servers, dict(dave))


def test_a_user_reaches_nodes_and_datanodes_in_tls_alone(secure):
    nodes = [node.address for node in secure.settings.nodes]
    with Client(nodes=nodes, tls=secure.tls("alice"), deadline_ms=60_000) as client:
        client.create_volume("straight")
        client.create_bucket("straight", "bucket1")
        content = os.urandom(400_000)
        with client.open("/straight/bucket1/key", "wb") as file:
            file.write(content)
        with client.open("/straight/bucket1/key") as file:
            assert file.read() == content
    with pytest.raises(NotConnected):
        Client(nodes=nodes, connect_timeout_ms=2_000)
    nobody = TlsFiles(ca=secure.authority.ca_file)
    with pytest.raises(NotConnected, match="HTTP 403"):
        Client(nodes=nodes, tls=nobody, connect_timeout_ms=3_000)


def test_datanodes_are_administered_by_nodes_alone(secure):
    datanode = secure.settings.datanodes[0]
    close = ClosePipeline(partition=0, generation=1)
    for name, role in (("alice", Role.CLIENT), ("dn2", Role.DATANODE), ("operator", Role.ADMIN)):
        tls = ProcessTls(secure.tls(name, role))
        with pytest.raises(DatanodeFailed, match="PERMISSION_DENIED"):
            ask(datanode.address, close, own=name, cluster=secure.settings.cluster, datanode="dn1", tls=tls)
    with pytest.raises(DatanodeFailed, match=r"(?i)ssl|reset|closed"):
        ask(datanode.address, close, own="om1", cluster=secure.settings.cluster)


def listening(secure: SecureStack) -> list[tuple[str, str, int]]:
    """Return member, address and port of every socket that a process of the stack, or a child of it, listens on."""
    found = state.read_state(secure.settings.data_dir)
    assert found is not None
    ports = []
    for member in found.members:
        process = psutil.Process(member.process.pid)
        for one in (process, *process.children(recursive=True)):
            ports += [(member.name, each.laddr.ip, each.laddr.port) for each in one.net_connections("tcp")
                      if each.status == psutil.CONN_LISTEN]  # fmt: skip
    return ports


QUESTION = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def said(sock: socket.socket, question: bytes = QUESTION) -> bytes:
    """Return what a peer says to a stranger's question, until it is silent or gone."""
    sock.settimeout(2)
    heard = b""
    try:
        sock.sendall(question)
        while piece := sock.recv(65536):
            heard += piece
    except OSError:
        pass
    return heard


def test_every_port_refuses_a_stranger(secure):
    assert strangers_hear(secure) == {"broker-1", "om1", "dn1", "dn2", "dn3"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_port_of_the_audit_and_the_dashboard_refuses_a_stranger(tmp_path):
    whole = SecureStack.start(tmp_path / "whole", auth="signed", audit=True, ui=True)
    try:
        assert strangers_hear(whole) == {"broker-1", "om1", "dn1", "dn2", "dn3", "audit", "ui"}
        audit = [(host, port) for name, host, port in listening(whole) if name == "audit"]
        # Metrics, Py4J's gateway and callbacks, Spark's RPC and blocks, the daemon of Python's workers.
        assert len(audit) >= 5
        for address in audit:
            heard = [ask_spark(address), ask_callback(address)]
            assert not [one for one in heard if b"java.io" in one or b"OK" in one or b"!ys" in one], (address, heard)
        assert whole.member("audit").process.is_running()
    finally:
        whole.close()


def strangers_hear(secure: SecureStack) -> set[str]:
    """Have a stranger ask at every port; nobody may answer. Return the members that listen."""
    context = ssl.create_default_context(cafile=secure.authority.ca_file)
    ports = listening(secure)
    assert len(ports) >= 10
    for name, host, port in ports:
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host.removeprefix("::ffff:")
        try:
            with socket.create_connection((reached, port), 5) as sock:
                plain = said(sock)
        except ConnectionRefusedError:
            assert (name, host, port) not in listening(secure)  # Spark's operator listens for a task, and ends
            continue
        # No answer of HTTP, no HELLO of a datanode: an alert of TLS, nothing, or Py4J's word that it takes no such command.
        assert len(plain) <= 7 or plain.startswith(b"!zspy4j.Py4JException: Unknown command"), (name, port, plain)
        with socket.create_connection((reached, port), 5) as sock:
            try:
                with context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
                    heard = said(tls)
            except OSError:
                heard = b""
        assert not heard or heard.startswith(b"HTTP/1.1 403"), (name, port, heard[:200])
    return {name for name, _, _ in ports}


def ask_spark(address: tuple[str, int]) -> bytes:
    """Return what is said to a whole request of Spark's RPC, of an unproven peer: a serialized object."""
    body = b"\x00\x00\x09endpoint1\xac\xed\x00\x05t\x00\x04EVIL"
    request = b"\x03" + (1).to_bytes(8, "big") + len(body).to_bytes(4, "big") + body
    return heard_at(address, (len(request) + 8).to_bytes(8, "big") + request)


def ask_callback(address: tuple[str, int]) -> bytes:
    """Return what is said to a call of Py4J: of what ``foreachBatch`` has registered first."""
    return heard_at(address, b"c\np0\ntoString\ne\n")


def heard_at(address: tuple[str, int], data: bytes) -> bytes:
    try:
        with socket.create_connection(address, 5) as sock:
            return said(sock, data)
    except OSError:
        return b""


def test_certificates_are_renewed_while_requests_go_on(secure):
    """Another host in a certificate has it made anew; connections from then on show it, and nothing is refused."""
    address = secure.settings.nodes[0].address
    host, _, port = address.partition(":")

    def end_of_certificate(at: int) -> object:
        context = ProcessTls(secure.tls("alice")).client()
        with socket.create_connection((host, at), 5) as sock, context.wrap_socket(sock, server_hostname=host) as tls:
            shown = tls.getpeercert()
            assert shown is not None
            return shown["serialNumber"]

    ports = [int(port), secure.settings.datanodes[0].port, secure.settings.datanodes[0].http_port]
    before = [end_of_certificate(one) for one in ports]
    with Client(secure.servers, kafka=secure.user("alice"), tls=secure.tls("alice"), deadline_ms=60_000) as client:
        client.create_volume("renewed")
        client.create_bucket("renewed", "bucket1")
        for number, holder in enumerate([("om1", Role.OM), *((f"dn{n}", Role.DATANODE) for n in (1, 2, 3))]):
            made = secure.authority.certify(
                PeerIdentity(name=holder[0], role=holder[1]), [f"renewed-{number}.example"], now_s=int(time.time())
            )
            assert made.reason is not None
            with client.open(f"/renewed/bucket1/{number}", "wb") as file:
                file.write(os.urandom(200_000))
            assert client.key_info("renewed", "bucket1", str(number)).info.size == 200_000
    after = [end_of_certificate(one) for one in ports]
    assert not set(before) & set(after)


def test_a_revoked_certificate_is_refused_by_running_processes(secure):
    """A user's at nodes, by HTTP and the direct door, and at datanodes; a member's at the brokers, too."""
    datanode = secure.settings.datanodes[0].address
    host, _, port = secure.settings.nodes[0].address.partition(":")

    def refused_by(tls: TlsFiles) -> set[str]:
        found = set()
        with httpx.Client(verify=ProcessTls(tls).client(), trust_env=False) as http:
            try:
                http.get(f"https://{host}:{port}/status")
            except httpx.TransportError:
                found.add("http")
        for name, address in (("node", f"{host}:{port}"), ("datanode", datanode)):
            at = address.rpartition(":")
            try:
                with socket.create_connection((at[0], int(at[2])), 5) as sock:
                    with ProcessTls(tls).client().wrap_socket(sock, server_hostname=at[0]) as made:
                        made.settimeout(1.0)
                        if made.recv(1) == b"":
                            found.add(name)
            except TimeoutError:
                continue  # it waits for what the caller says
            except OSError as error:
                found.add(name if "REVOKED" in str(error).upper() else f"{name}: {error}")
        return found

    eve = secure.tls("eve")
    assert refused_by(eve) == set()
    done = secure.stratolog("admin", "certificate", "revoke", "eve")
    assert done.returncode == 0, done.stderr
    assert refused_by(eve) == {"http", "node", "datanode"}
    assert len(secure.stratolog("admin", "certificate", "revoked").stdout.splitlines()) >= 3
    assert refused_by(secure.tls("alice")) == set()
    made = secure.stratolog("admin", "certificate", "make", "eve")
    assert "it is revoked" in made.stdout
    assert refused_by(eve) == set(), "the same file has a new certificate"
    # The cluster goes on: members show certificates that are not on the list.
    with Client(secure.servers, kafka=secure.user("alice"), tls=secure.tls("alice"), deadline_ms=60_000) as client:
        client.create_volume("after-revocation")
    # A member loses its rights on the brokers, which do not look at the list.
    ensure_access(admin_of(secure.settings.connection), [(KafkaPrincipal.OM, "om9")])
    om9 = client_settings(secure.as_member(Role.OM, "om9"), {"log_level": 0})

    open_since_before = Producer(om9)

    def error_at_brokers() -> KafkaError | None:
        found: KafkaError | None = open_since_before.list_topics("om.log", timeout=20).topics["om.log"].error
        return found

    assert error_at_brokers() is None
    revoked = secure.stratolog("admin", "certificate", "revoke", "om9")
    assert "om om9 has no rights on the brokers any more" in revoked.stdout, revoked.stdout + revoked.stderr
    deadline_s = time.monotonic() + REFUSED_WITHIN_S
    while code_of(error_at_brokers()) != DENIED:
        assert time.monotonic() < deadline_s
    unknown = secure.stratolog("admin", "certificate", "revoke", "nobody-of-ours")
    assert unknown.returncode != 0
    assert "nobody called 'nobody-of-ours' has a certificate" in unknown.stderr


@pytest.mark.slow
def test_a_password_is_changed_under_load_and_the_broker_restarts(secure):
    """Open connections stay; when they break, the client reads its password anew, and no call fails."""
    failures: list[BaseException] = []
    done = threading.Event()
    count = 0

    def load(client: Client) -> None:
        nonlocal count
        while not done.is_set():
            try:
                client.create_volume(f"rotated-{count}")
                count += 1
            except BaseException as error:
                failures.append(error)
                return

    with Client(secure.servers, kafka=secure.user("bob"), tls=secure.tls("bob"), deadline_ms=120_000) as client:
        thread = threading.Thread(target=load, args=(client,))
        thread.start()
        old = secure.password_file("bob").read_text()
        for _ in range(3):
            file = str(secure.password_file("bob"))
            assert secure.stratolog("admin", "kafka-user", "rotate", "bob", "--password-file", file).returncode == 0
            assert secure.password_file("bob").read_text() != old
            time.sleep(1)
        before = count
        secure.member("broker-1").process.kill()
        stack.up(secure.settings, detached=False)
        deadline_s = time.monotonic() + 90
        while count < before + 20 and not failures and time.monotonic() < deadline_s:
            time.sleep(0.2)
        done.set()
        thread.join(130)
    assert failures == []
    assert count >= before + 20


@pytest.mark.slow
def test_the_audit_runs_as_a_principal_of_its_own(secure):
    once = secure.stratolog("audit", "--once")
    assert once.returncode == 0, once.stdout + once.stderr
    settings = stack.up(secure.settings.with_values(audit=True), detached=False)
    with VerdictReader(settings.connection) as reader:
        for verdicts in reader.until(Deadline.after_s(120)):
            if [one for one in verdicts if one.verdict == EQUAL]:
                break
        else:
            pytest.fail("the audit of a secure stack has said nothing in two minutes")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_audit_names_a_diverged_key_where_calls_are_signed(tmp_path):
    """Without TLS, so that no certificate speaks for it: the audit signs as itself, with credentials that 'up' made."""
    ports = free_ports(4)
    nodes = tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=ports[n]) for n in (1, 2, 3))
    settings = secure_settings(
        tmp_path / "signed", auth="signed", audit=True, secure=None, datanodes=(), nodes=nodes,
        bootstrap_servers=f"127.0.0.1:{ports[0]}", key_encryption_file=tmp_path / "elsewhere" / "key",
    )  # fmt: skip
    signed = SecureStack(stack.up(settings, detached=False))
    try:
        assert [one.is_encrypted for one in at_rest.secret_files(signed.settings)] == [True, True]
        done = signed.stratolog("drill", "corrupt-replica", "--json")
        # The drill wants the keys beside one verdict, within 30 s; here any verdict on the damaged replica will do.
        told = []
        with VerdictReader(signed.settings.connection) as reader:
            for verdicts in reader.until(Deadline.after_s(60)):
                told += [one.reason for one in verdicts if one.verdict == DIVERGED]
                if [reason for reason in told if "/load/key-4' (another value)" in reason]:
                    break
            else:
                pytest.fail(f"no key is named: {told}; {done.stdout[-3000:]}{done.stderr[-1000:]}")
    finally:
        signed.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_keys_are_changed_written_in_clear_and_encrypted_on_a_real_stack(tmp_path):
    """The whole way: another key under load, a killed change, clear for older software, encrypted again, open brokers."""
    keyed = SecureStack(stack.up(secure_settings(tmp_path / "keyed", datanodes=()), detached=False))
    key_file = keyed.settings.key_encryption_file
    assert key_file is not None

    def command(*words: str) -> str:
        done = keyed.stratolog(*words)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def in_clear() -> list[bool]:
        return [not one.is_encrypted for one in at_rest.secret_files(keyed.settings)]

    try:
        command("admin", "kafka-user", "add", "alice")
        # From here on the file of the authority has a list, which brokers pass over when they start.
        command("admin", "certificate", "make", "mallory")
        command("admin", "certificate", "revoke", "mallory")
        before = key_file.read_bytes()
        command("admin", "keys", "rotate")
        assert key_file.read_bytes() != before
        command("sh", "volume", "create", "/rotated")
        # The process that runs shows a certificate made under the new key; one that is started reads it.
        command("admin", "certificate", "make", "om1", "--role", "om", "--host", "renewed.example")
        command("admin", "stop-node", "om1")
        command("admin", "start-node", "om1")
        command("sh", "volume", "info", "/rotated")
        # A change that was killed in the middle: the next key is there, and some files are under it.
        keys = KeyEncryption(key_file)
        keys.begin_change()
        first = next(iter(at_rest.secret_files(keyed.settings)))
        write_private(first.path, at_rest._encrypted(first, keys))
        command("sh", "volume", "create", "/between")
        assert stack.down(keyed.settings)
        stack.up(replace(keyed.settings, explicit=frozenset()), detached=False)
        assert not key_file.with_name(key_file.name + ".next").exists()
        command("admin", "keys", "decrypt")
        assert all(in_clear())
        command("sh", "volume", "create", "/clear")
        stack.down(keyed.settings)
        key_file.rename(tmp_path / "away")
        data_dir = keyed.settings.data_dir
        plain = replace(secure_settings(data_dir, datanodes=(), nodes=keyed.settings.nodes), secure=None)
        found = stack.up(plain, detached=False)
        assert (found.secure, found.key_encryption_file) == (True, None)
        command("sh", "volume", "info", "/clear")
        refused = keyed.stratolog("admin", "keys", "encrypt")
        assert "'stratolog down' first" in refused.stderr
        stack.down(found)
        command("admin", "keys", "encrypt", "--file", str(tmp_path / "elsewhere" / "key"))
        assert not any(in_clear())
        found = stack.up(plain, detached=False)
        assert found.key_encryption_file == tmp_path / "elsewhere" / "key"
        command("sh", "volume", "info", "/between")
        stack.down(found)
        opened = stack.up(replace(plain, secure=False), detached=False)
        assert (opened.secure, dict(opened.kafka)) == (False, {})
        command("sh", "volume", "info", "/rotated")
        stack.down(opened)
    finally:
        keyed.close()
    assert not key_file.exists()
    assert (tmp_path / "elsewhere" / "key").exists(), "a file that a person has named is a person's"


NOBODY = 65_534
PUBLIC = re.compile(r"-----BEGIN CERTIFICATE-----.*-----END CERTIFICATE-----\s*", re.DOTALL)


def read_as_nobody(paths: Sequence[Path]) -> dict[str, int]:
    """Return which of the files another account can open, with how many bytes it reads of each."""
    code = (
        "import json, os, sys\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "found = {}\n"
        "for path in json.load(sys.stdin):\n"
        "    try:\n"
        "        with open(path, 'rb') as file:\n"
        "            found[path] = len(file.read(1 << 20))\n"
        "    except OSError:\n"
        "        pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], input=json.dumps([str(path) for path in paths]), capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another account")
def test_another_account_of_the_machine_reads_nothing_of_a_secure_stack():
    """Neither a file, nor what processes are started with: nor of one that an older release has left open to all."""
    base = Path(tempfile.mkdtemp(prefix="stratolog-accounts-"))
    base.chmod(0o755)  # pytest's own folder would keep others out
    data = base / "stack"
    settings = secure_settings(data, auth="signed", audit=True, ui=True, nodes=secure_settings(data).nodes)
    try:
        secure = SecureStack(stack.up(settings, detached=False))
        for words in (("admin", "kafka-user", "add", "alice"), ("admin", "certificate", "make", "alice"),
                      ("admin", "user", "add", "alice", "--file", str(base / "alice.credentials")),
                      ("backup", str(base / "backups"))):  # fmt: skip
            done = secure.stratolog(*words)
            assert done.returncode == 0, (words, done.stderr[-2000:])
        _reads_nothing(secure, base)
        stack.down(secure.settings)
        for path in (data, *data.rglob("*")):  # as an older release has left it
            if not any(map(path.is_relative_to, (data / "authority", data / "kafka-users"))) and not path.is_symlink():
                path.chmod(
                    0o755 if path.is_dir() else 0o600 if path.name in ("cluster-secret", "audit.credentials") else 0o644
                )
        assert len(read_as_nobody(list(data.rglob("*")))) > 100
        said: list[str] = []
        stack.up(replace(secure.settings, explicit=frozenset()), detached=False, report=said.append)
        assert any("files and folders are for this account alone now" in line for line in said)
        _reads_nothing(secure, base)
    finally:
        stack.down(settings, remove_data=True)
        shutil.rmtree(base, ignore_errors=True)


def _reads_nothing(secure: SecureStack, base: Path) -> None:
    folder = secure.settings.data_dir
    found = state.read_state(folder)
    assert found is not None
    processes = [psutil.Process(member.process.pid) for member in found.members]
    processes += [child for one in processes for child in one.children(recursive=True)]
    assert len({member.name for member in found.members}) == 7
    files = [path for path in base.rglob("*") if path.is_file()]
    assert len(files) > 300
    # Spark lets everybody execute the jars that it has copied, and nobody comes there.
    open_to_others = [path for path in files if path.stat().st_mode & 0o066]
    open_to_others += [path for path in (folder, *folder.rglob("*")) if path.is_dir() and path.stat().st_mode & 0o077]
    assert open_to_others == []
    # What processes keep elsewhere: only what came with the software, and the system's own.
    for process in processes:
        own = [Path(one.path) for one in process.open_files() if Path(one.path).stat().st_mtime > process.create_time()]
        files += [path for path in own if not path.is_relative_to("/proc") and not path.is_relative_to("/sys")]
        files += [Path(f"/proc/{process.pid}/{name}") for name in ("environ", "maps", "mem", "io", "stack")]
        files += [Path(f"/proc/{process.pid}/fd/{number}") for number in range(64)]
    read = read_as_nobody(files)
    assert [path for path, length in read.items() if length and not PUBLIC.fullmatch(Path(path).read_text())] == []
    secrets = [one.content for one in at_rest.secret_files(secure.settings)]
    keys = KeyEncryption(secure.settings.key_encryption_file or Path())
    clear = [at_rest._clear(one, keys) for one in at_rest.secret_files(secure.settings)]
    secrets += [one.splitlines()[1] if b"PRIVATE KEY" in one else one.strip() for one in clear]
    secrets += [*keys.keys(), (base / "alice.credentials").read_bytes().split()[2]]
    for process in processes:
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert shown
        assert not [one for one in secrets if one in shown], process
