"""``rotate-keys``: every key that can be changed while a cluster runs is changed under load, and nothing is refused.

Passwords of the brokers' users, all certificates at once, secrets of users, delegation tokens. What is old is refused
afterwards: a password at once, a secret and its tokens when their overlap ends, a cancelled token at once. A
certificate that was replaced stays valid until its time is over. The cluster's secret, and Kafka's own connections to
brokers, cannot be changed while all runs (docs/security.md).

The drill runs on a stack of its own: it needs a secure one, with signed requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from producers.client import Client
from producers.errors import StratologError
from schemas.access.credentials import Credentials, TokenName, credentials_of
from schemas.kafka.connection import CA_FILE, PASSWORD_FILE, PROTOCOL, SASL_SSL, USERNAME
from schemas.records.identity import CreateUser, RotateUser
from schemas.topics import OM_RESPONSES
from stratolog.brokers.admission import admin_of
from stratolog.brokers.identities import password_file
from stratolog.brokers.kafka_users import add_user, set_password
from stratolog.configuration.settings import Settings
from stratolog.drills.core.report import StepFailed
from stratolog.drills.keys.core import rotation_findings
from stratolog.drills.keys.secure_stack import renew_all, secure_stack, shown_certificates, tls_of
from stratolog.drills.keys.signed_load import SignedWriter
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import client_of
from stratolog.drills.kit.session import Session
from stratolog.local.stack import topic_plan
from stratolog.security.private_files import write_private

USER = "drill"
PLACE = ("drill-rotate-keys", "load")
WRITES = 10
OVERLAP_S = 20
BEYOND_S = 3.0
"""How long after the end of an overlap what is old is tried: nodes look at their rows of users every 0.1 s."""
REFUSED_WITHIN_MS = 8_000
DENIED = ("PERMISSION_DENIED", "was refused", "HTTP 403")
"""What a refusal says. Anything else, as a broken connection, is none."""


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with (
        secure_stack(session, cluster.settings, "rotate-keys", detached=cluster.detached) as own,
        client_of(own, operator=True) as operator,
    ):
        rotation = Rotation(session, own, operator)
        with rotation.load() as writers:
            rotation.change_password()
            rotation.renew_certificates()
            rotation.change_secret()
            rotation.cancel_token()
            with session.step("stop the load") as found:
                for writer in writers:
                    writer.wait_more(WRITES)
                    writer.stop()
                found(f"{sum(len(writer.acknowledged) for writer in writers)} writes acknowledged")
        rotation.judge()


class Rotation:
    """One run: the user's keys of now, the writers, and what was said to old keys."""

    def __init__(self, session: Session, own: Settings, operator: Client) -> None:
        self._session = session
        self._own = own
        self._operator = operator
        self._tls = tls_of(own, USER)
        self._credentials = self._made()
        self._token = self._new_token()
        self._writers: list[SignedWriter] = []
        self._said: dict[str, str] = {}
        self._begun_s = time.monotonic()

    def _made(self) -> Credentials:
        """Make the user, for the brokers and for the nodes, with a bucket of its own; return its credentials."""
        own, operator = self._own, self._operator
        with self._session.step("make a user, with a password, a certificate, a secret, a token and a bucket"):
            plan = topic_plan(own)
            topic = plan.topics()[OM_RESPONSES].settings
            add_user(admin_of(own.connection), USER, self._password_file, topic, plan.replication_factor)
            made = operator.call(CreateUser(user=USER))
            operator.create_volume(PLACE[0], owner=USER)
            operator.create_bucket(*PLACE, owner=USER)
        return credentials_of(own.secret(), TokenName(user=USER, generation=made.index, number=0))

    @property
    def _password_file(self) -> Path:
        return password_file(self._own.data_dir, USER)

    def _new_token(self) -> Credentials:
        with self._direct(self._credentials)() as client:
            return client.get_delegation_token(USER)

    # -- ways in ---------------------------------------------------------------------------------------------------

    def _by_brokers(self, credentials: Credentials, password: Path) -> Callable[[], Client]:
        options = {
            PROTOCOL: SASL_SSL, CA_FILE: str(self._tls.ca), USERNAME: USER, PASSWORD_FILE: str(password),
        }  # fmt: skip
        return lambda: Client(
            self._own.bootstrap_servers, kafka=options, credentials=credentials, tls=self._tls,
            connect_timeout_ms=REFUSED_WITHIN_MS,
        )  # fmt: skip

    def _direct(self, credentials: Credentials) -> Callable[[], Client]:
        nodes = [node.address for node in self._own.nodes]
        return lambda: Client(nodes=nodes, credentials=credentials, tls=self._tls, connect_timeout_ms=REFUSED_WITHIN_MS)

    @contextmanager
    def load(self) -> Iterator[list[SignedWriter]]:
        """Write by each way in until the end of the block."""
        ways = {
            "the brokers": self._by_brokers(self._credentials, self._password_file),
            "the direct door": self._direct(self._credentials),
            "a delegation token": self._direct(self._token),
        }
        with self._session.step(f"write by {', '.join(ways)}"):
            self._writers += [SignedWriter(way, PLACE, open_client) for way, open_client in ways.items()]
        try:
            self._wait_more()
            yield self._writers
        finally:
            for writer in self._writers:
                writer.give_up()

    def _wait_more(self) -> None:
        for writer in self._writers:
            writer.wait_more(WRITES)

    def _refused(self, what: str, open_client: Callable[[], Client]) -> None:
        """Note what is said to somebody with old keys; raises StepFailed if it is neither taken nor refused."""
        said = ""
        try:
            with open_client() as client:
                client.put_key(*PLACE, "with-old-keys", b"x")
        except StratologError as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)
            if not any(word in str(error) for word in DENIED):
                raise StepFailed(f"{what}: neither taken nor refused: {said}") from error
        self._said[what] = said

    # -- changes ---------------------------------------------------------------------------------------------------

    def change_password(self) -> None:
        """Give the user another password; connections that are open stay."""
        brokers, _, _ = self._writers
        old = self._password_file.with_name("old.password")
        with self._session.step("change the user's password"):
            write_private(old, self._password_file.read_bytes())
            set_password(admin_of(self._own.connection), USER, self._password_file)
            self._wait_more()
            brokers.change(self._by_brokers(self._credentials, self._password_file))
        self._refused("the old password", self._by_brokers(self._credentials, old))

    def renew_certificates(self) -> None:
        """Make all certificates anew at once: each process reads its own at its next connection."""
        before = shown_certificates(self._own, self._tls)
        with self._session.step("make every certificate anew") as found:
            number = renew_all(self._own)
            self._wait_more()
            self._change_clients()
            found(f"{number} certificates")
        after = shown_certificates(self._own, self._tls)
        self._session.find(rotation_findings.certificates_are_new(before, after))

    def change_secret(self) -> None:
        """Give the user another secret; the one before, and its tokens, are taken until the overlap ends."""
        old, old_token = self._credentials, self._token
        with self._session.step(f"change the user's secret, with an overlap of {OVERLAP_S} s"):
            changed_s = time.monotonic()
            made = self._operator.call(RotateUser(user=USER, overlap_ms=1000 * OVERLAP_S))
            self._wait_more()
            name = TokenName(user=USER, generation=made.index, number=0)
            self._credentials = credentials_of(self._own.secret(), name)
            self._token = self._new_token()
            self._change_clients()
        with self._session.step("wait until the overlap has ended"):
            time.sleep(max(0.0, changed_s + OVERLAP_S + BEYOND_S - time.monotonic()))
        self._wait_more()
        self._refused("the old secret, by the direct door", self._direct(old))
        self._refused("the old secret, by the brokers", self._by_brokers(old, self._password_file))
        self._refused("a token of the old secret", self._direct(old_token))

    def cancel_token(self) -> None:
        """Get another token for the writer, and cancel the one before."""
        _, _, by_token = self._writers
        old = self._token
        with self._session.step("cancel the delegation token, behind another one"):
            self._token = self._new_token()
            by_token.change(self._direct(self._token))
            with self._direct(self._credentials)() as client:
                client.cancel_delegation_token(old)
            time.sleep(BEYOND_S)
        self._wait_more()
        self._refused("the cancelled token", self._direct(old))

    def _change_clients(self) -> None:
        brokers, direct, by_token = self._writers
        brokers.change(self._by_brokers(self._credentials, self._password_file))
        direct.change(self._direct(self._credentials))
        by_token.change(self._direct(self._token))

    # -- what was seen ---------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Add the findings on the load and on old keys."""
        writers = self._writers
        acknowledged = [key for writer in writers for key in writer.acknowledged]
        with self._session.step("list what was written"):
            listed = [entry.key for entry in self._operator.list_keys(*PLACE)]
        self._session.find(
            rotation_findings.nothing_refused(
                {writer.way: len(writer.acknowledged) for writer in writers},
                [failure for writer in writers for failure in writer.failures],
            ),
            rotation_findings.all_there(acknowledged, listed), rotation_findings.old_is_refused(self._said),
        )  # fmt: skip
        self._session.figures["acknowledged"] = float(len(acknowledged))
        self._session.figures["load_s"] = round(time.monotonic() - self._begun_s, 1)
