"""Simulated clusters that demand signatures: users with rights, forgers, users who are removed and made again, secrets that are
rotated, delegation tokens.

Two clients act as the operator, as those of the other worlds do; users' clients sign with their secrets of now, with former ones, and
with tokens that may have been cancelled. Forged requests come beside them: unsigned, signed by another, with another's token, over
other bytes, under another's client id. What must hold besides:

1. A request has an effect only if it was signed, once at least, by whom it names, with a secret that was right, or proved by a member.
2. A gateway lets a user's request through only if its replica of shard 0 has that user's secret, and the token, or had them
   KNOWN_MS ago. With a former secret that is told only up to the end of the overlap.
3. What is well signed with a secret that has not ended, by a user who was never removed, is not refused.
4. Every decision of rights is that of the plain model (``rights``), and so is every list in the rows. So are users and tokens.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from xxhash import xxh3_128_digest

from om_processors.identity.identities import KNOWN_MS, Identities
from om_processors.intake.direct_calls import DirectCalls
from om_processors.intake.gateway import Gateway, Received
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.access.credentials import Credentials, TokenName, client_prefix, credentials_of, operator_credentials
from schemas.access.signatures import seal_of, sealed_key
from schemas.codecs.codec import decode, decode_as, encode
from schemas.column_families import BUCKET_TABLE, IDENTITY_TABLE, KEY_TABLE, PREFIX_TABLE, VOLUME_TABLE
from schemas.privilege import is_privileged
from schemas.records.identity import (
    CancelDelegationToken,
    ChangeAcl,
    CreateUser,
    GetDelegationToken,
    RemoveUser,
    RotateUser,
    TokenRow,
    UserRow,
)
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    DeleteKey,
    PutKey,
    ReleaseBlocks,
    RenameKey,
    Request,
    RequestBody,
    ReserveBlocks,
    Response,
    SetBucketProperty,
)
from schemas.records.rows import Acl
from schemas.result_codes import OVERLOADED, PERMISSION_DENIED
from tests.simulation.broker import RequestPartition
from tests.simulation.clients import ABSENT, BUCKETS, KEYS, VOLUME, Client, commit_reserved
from tests.simulation.cluster import START_MS, Node
from tests.simulation.faults import SETTLE, Faults, actions_of
from tests.simulation.invariants import Invariants
from tests.simulation.rights import GROUPS, ROOT, Entries, Refused, RightsModel, entries_of
from tests.simulation.trace import Failure, run
from tests.simulation.truth import Truth, Violation
from tests.simulation.world import Action, World
from tests.support.local.secret import SECRET

OPERATOR = operator_credentials(SECRET)
OTHER_SECRET = bytes(32)
USERS = ("ann", "ben")
RIGHTS = (1, 2, 3, 4, 7, 16, 64, 65, 127, 127, 0)
WHO = (("USER", "ann"), ("USER", "ben"), ("GROUP", "red"), ("GROUP", "blue"), ("WORLD", ""))
PREFIX = "a/"
NAMES_OF_KEYS = (*KEYS, "a/k")
CALLS = {
    "as_user": 90, "forge": 30, "give": 35, "make_user": 8, "remove_user": 4, "rotate_user": 8, "get_token": 14,
    "cancel_token": 12, "go_on": 180, "deliver": 90, "respond": 70,
}  # fmt: skip
"""How often each occurs in a seed, beside what the other worlds do."""
RESERVATIONS = 14
"""How often a user asks for blocks, and thrice for something about them."""
BEGINNING = [
    ("make_user", 0), ("make_user", 1), ("go_on", 15), ("deliver", 7), ("go_on", 15), ("respond", 3), ("respond", 3),
    ("go_on", 15), ("deliver", 7), ("go_on", 15), ("respond", 3),
]  # fmt: skip
BEGUN = 12
"""So many actions of every seed elect a leader, and make a volume and a bucket."""
OVERLAPS_MS = (0, 5_000, 3_600_000)
"""How long the secret before a rotation is taken: not at all, for a while, longer than a seed."""
SKEW_MS = 2
"""By how much the moment at which a replica is looked at here may differ from that of the gateway."""


class SignedClient(Client):
    """A client that signs as a user. Its id begins as those of its user's clients do."""

    def __init__(self, world: CallersWorld, number: int, user: str) -> None:
        super().__init__(number)
        self.user = user
        self._world = world
        self.calls.client_id = client_prefix(user) + bytes([number]) * 10
        self.calls._caller = user

    def _done(self, body: RequestBody, outcome: Any) -> None:
        super()._done(body, outcome)
        if isinstance(outcome, Response) and outcome.status == "OK":
            self._world.happened(body, outcome)


class SignedPartition(RequestPartition):
    """``om.requests`` whose records have the keys that their senders gave them."""

    keyring: dict[bytes, bytes]

    def received(self, value: bytes, **more: Any) -> Received:
        key = self.keyring.get(value)
        seal = seal_of(key, value)
        return Received(value=value, key=key if seal is None else seal.rest or None, seal=seal, **more)

    def at(self, offset: int) -> Received | None:
        """Return a record with a seal of its own: each reader finds out for itself who has signed."""
        found = super().at(offset)
        return None if found is None else self.received(found.value, offset=offset, position=found.position)


class SignedNode(Node):
    """A node that demands signatures."""

    def boot(self) -> None:
        self.secrets_seen: dict[tuple[str, int], int] = {}
        """By user and generation: when it was last in this node's replica, by the node's clock."""
        self.tokens_seen: dict[tuple[str, int], int] = {}
        self.overlaps: dict[tuple[str, int], int] = {}
        """Until when a former secret is taken."""
        self._rotated: dict[tuple[str, int], int] = {}
        super().boot()
        self.gateway = self.new_gateway()

    def new_gateway(self) -> Gateway:
        identities = Identities(SECRET, lambda: self.replica, self.clock)
        return WatchedGateway(self, shard=0, node=self.name, secret=SECRET, identities=identities)

    def look_at_users(self) -> None:
        """Remember when each secret and token was last in this node's replica, by the node's clock."""
        if not self.up:
            return
        now_ms = self.clock.elapsed_ms()
        for value in (value for _, value in self.replica.rows.iterate(IDENTITY_TABLE, b"")):
            row = decode(value)
            if isinstance(row, TokenRow):
                self.tokens_seen[row.owner, row.number] = now_ms
            elif isinstance(row, UserRow):
                self.secrets_seen[row.user, row.generation] = now_ms
                if row.previous_generation:
                    self.secrets_seen[row.user, row.previous_generation] = now_ms
                    self._rotated.setdefault((row.user, row.previous_generation), now_ms)
                    self.overlaps[row.user, row.previous_generation] = row.previous_until_ms

    def rotated_ms(self, secret: tuple[str, int]) -> int:
        """Return when this node's replica first had a secret as a former one."""
        return self._rotated[secret]


class WatchedGateway(Gateway):
    """A gateway that is looked at: whom it lets through, and whom it refuses."""

    def __init__(self, of: SignedNode, **more: Any) -> None:
        super().__init__(**more)
        self._of = of

    def admit(self, received: Received, now_ms: int) -> Any:
        node = self._of
        node.look_at_users()
        admitted = super().admit(received, now_ms)
        if isinstance(admitted, Proposal) and admitted.standing is not None:
            if admitted.body.caller != OPERATOR.user:
                self._check_standing(admitted)
            node.seen[f"let through: {'operator' if admitted.body.caller == OPERATOR.user else 'user'}"] += 1
        elif isinstance(admitted, Reply):
            node.seen[f"at the gate: {decode(admitted.response).status}"] += 1
        return admitted

    def _check_standing(self, admitted: Proposal) -> None:
        """Raise Violation if the node believes a secret or a token that its replica does not have any more."""
        node, user, standing = self._of, admitted.body.caller, admitted.standing
        assert standing is not None
        secret = (user, standing.generation)
        looks = [node.secrets_seen.get(secret)]
        if standing.token:
            looks.append(node.tokens_seen.get((user, standing.token)))
            node.seen["let through: token"] += 1
        for seen in looks:
            if seen is None or node.clock.elapsed_ms() - seen > KNOWN_MS + SKEW_MS:
                raise Violation(f"{node.name} believes {user} with {standing}, whom its replica does not know")
        if secret in node.overlaps:
            node.seen["let through: former secret"] += 1
            # A moment ago it may have been the newest one.
            fresh = node.clock.elapsed_ms() - node.rotated_ms(secret) <= KNOWN_MS + SKEW_MS
            if admitted.first_sent_at_ms > node.overlaps[secret] and not fresh:
                raise Violation(f"{node.name} believes {user}:{standing.generation} after the overlap")


class SignedInvariants(Invariants):
    """Refusals at the gate are those of rule 3."""

    truth_of: Any

    def refused_at_once(self, node: Node, reply: Reply) -> None:
        status = decode(reply.response).status
        is_direct = isinstance(reply.proposal.reply_to, DirectCalls)
        if status == OVERLOADED:
            return None
        if status != PERMISSION_DENIED:
            return super().refused_at_once(node, reply)
        truth = self.truth
        assert isinstance(truth, CallersTruth)
        digest, caller = reply.proposal.request_hash, reply.proposal.body.caller
        # With the log's tail the making of a user may be lost, and its index comes again.
        may_be = caller in truth.removed or truth.has_ended(digest) or truth.seen["log cut"]
        if digest in truth.signed and not may_be:
            raise Violation(f"{node.name} refuses what is well signed: {decode(reply.response)}")
        if not is_direct:
            self._deliver(decode(reply.response).client_id, reply.response)
        return None


class CallersTruth(Truth):
    """The judge of who may do what. ``signed`` has the hashes of what was ever signed or proved as it should be."""

    def __init__(self, *arguments: Any, signed: set[bytes], removed: set[str], signers: dict[bytes, TokenName]) -> None:
        super().__init__(*arguments)
        self.signed = signed
        self.removed = removed
        self.signers = signers
        self.rights = RightsModel()
        self.users: dict[str, tuple[int, int]] = {}
        """Generations of each user's secret, and of the one before (0: there is none)."""
        self.tokens: dict[tuple[str, int], int] = {}
        """By owner and number: the generation of the secret that they are derived from."""
        self.ended: set[tuple[str, int]] = set()
        """Secrets, by generation, and tokens, by number, that may not be believed any more: numbers are indexes."""

    def has_ended(self, digest: bytes) -> bool:
        """Whether that by which a request was signed may not be believed any more."""
        name = self.signers.get(digest)
        return name is not None and bool({(name.user, name.generation), (name.user, name.number)} & self.ended)

    def expected(self, request: Request, index: int, now_ms: int) -> str:
        if xxh3_128_digest(encode(request)) not in self.signed:
            raise Violation(f"what nobody has signed takes effect at index {index}: {request}")
        body, who = request.body, ROOT if request.caller == OPERATOR.user else request.caller
        if isinstance(body, CreateUser | RotateUser | RemoveUser):
            return self._of_users(body, index)
        if isinstance(body, GetDelegationToken | CancelDelegationToken):
            return self._of_tokens(request, body, index)
        trial = copy.deepcopy(self.rights)
        said = "OK"
        try:
            trial.do(who, body, index)
        except Refused as refused:
            said = str(refused)
        self.seen[
            f"rights: {'operator' if who == ROOT else 'user'} {'denied' if said == PERMISSION_DENIED else 'not denied'}"
        ] += 1
        if said == PERMISSION_DENIED:
            return said
        if not isinstance(body, ChangeAcl):
            said = super().expected(request, index, now_ms)
        if said == "OK":
            self.rights = trial
            # Of what expires the rows are gone, and nobody is told whose they were.
            trial.sessions = {
                session: found
                for session, found in trial.sessions.items()
                if (*found[1:3], session) in self.model.sessions
            }
        return said

    def _of_users(self, body: CreateUser | RotateUser | RemoveUser, index: int) -> str:
        known = self.users.get(body.user)
        if isinstance(body, CreateUser):
            if known is not None:
                return "USER_ALREADY_EXISTS"
            self.users[body.user] = index, 0
            return "OK"
        if known is None:
            return "USER_NOT_FOUND"
        if isinstance(body, RotateUser):
            self.users[body.user] = index, known[0]
            self.ended.add((body.user, known[1]))
            if body.overlap_ms < OVERLAPS_MS[-1]:
                self.ended.add((body.user, known[0]))
            return "OK"
        del self.users[body.user]
        self.removed.add(body.user)
        self.tokens = {place: one for place, one in self.tokens.items() if place[0] != body.user}
        return "OK"

    def _of_tokens(self, request: Request, body: GetDelegationToken | CancelDelegationToken, index: int) -> str:
        name, caller = self.signers[xxh3_128_digest(encode(request))], request.caller
        if name.number or (isinstance(body, GetDelegationToken) and not name.generation):
            return PERMISSION_DENIED
        if isinstance(body, GetDelegationToken):
            self.tokens[caller, index] = name.generation
            return "OK"
        if caller not in (body.owner, OPERATOR.user):
            return PERMISSION_DENIED
        if self.tokens.pop((body.owner, body.number), None) is None:
            return "INVALID_TOKEN"
        self.ended.add((body.owner, body.number))
        return "OK"

    def _check_identities(self) -> None:
        users, tokens = {}, {}
        for (family, _), value in self.rows.items():
            row = decode(value) if family == IDENTITY_TABLE else None
            if isinstance(row, UserRow):
                users[row.user] = row.generation, row.previous_generation
            elif isinstance(row, TokenRow):
                tokens[row.owner, row.number] = row.generation
        if (users, tokens) != (self.users, self.tokens):
            raise Violation(f"users and tokens are {users}, {tokens}, and should be {self.users}, {self.tokens}")

    def check_model(self) -> None:
        super().check_model()
        self._check_identities()
        expected: dict[tuple[str, ...], Entries] = {}
        for name, volume in self.rights.volumes.items():
            expected[VOLUME_TABLE, name] = volume.entries
            for place, bucket in volume.buckets.items():
                expected[BUCKET_TABLE, name, place] = bucket.entries
                expected |= {(PREFIX_TABLE, name, place, prefix): one for prefix, one in bucket.prefixes.items()}
                expected |= {(KEY_TABLE, name, place, key): one.entries for key, one in bucket.keys.items()}
        found = {
            (family, *key.decode().split("/", 3)[1:]): entries_of(decode(value).acls)
            for (family, key), value in self.rows.items()
            if family in (VOLUME_TABLE, BUCKET_TABLE, PREFIX_TABLE, KEY_TABLE)
        }
        if found != expected:
            raise Violation(f"lists are {found}, and should be {expected}")
        self.seen["lists compared"] += sum(map(bool, found.values()))


class CallersWorld(World):
    """A cluster that demands signatures, and its callers."""

    NODE = SignedNode
    INVARIANTS = SignedInvariants

    def __init__(self, say: Any = None) -> None:
        self.keyring: dict[bytes, bytes] = {}
        self.signed: set[bytes] = set()
        self.removed: set[str] = set()
        self.credentials: dict[str, Credentials] = {}
        self.held: dict[str, list[Credentials]] = {user: [] for user in USERS}
        """All that a user was ever given: former secrets and tokens too, ended ones among them."""
        self.signers: dict[bytes, TokenName] = {}
        """By the hash of a request: what it was signed with."""
        self._asked: dict[tuple[bytes, int], Credentials] = {}
        """By client and call: what a request for a token was signed with, which the token is derived from."""
        super().__init__(say)
        self.clients = [SignedClient(self, number + 1, OPERATOR.user) for number in range(len(self.clients))]
        self.users = {user: SignedClient(self, number + 10, user) for number, user in enumerate(USERS)}

    def new_truth(self) -> Truth:
        base = super().new_truth()
        return CallersTruth(
            base.requests, base.seen, base.max_batch_requests, base.pipelines, signed=self.signed, removed=self.removed,
            signers=self.signers,
        )  # fmt: skip

    def new_requests(self) -> RequestPartition:
        found = SignedPartition(self.broker_ms)
        found.keyring = self.keyring
        return found

    def client_of(self, client_id: bytes) -> Client | None:
        everybody = (*self.clients, *self.users.values())
        return next((one for one in everybody if one.calls.client_id == client_id), None)

    def resend(self) -> None:
        super().resend()
        for client in self.users.values():
            for value in client.due(self.scheduler.now_ms):
                self.send(value)

    def heal(self) -> None:
        for client in self.users.values():
            client.calls.abandon()
        super().heal()

    def happened(self, body: RequestBody, answer: Response) -> None:
        """Somebody hears that a user has another secret, or a token, and keeps it."""
        if isinstance(body, CreateUser | RotateUser):
            made = credentials_of(SECRET, TokenName(user=body.user, generation=answer.index, number=0))
            self.credentials[body.user] = made
            self.held[body.user].append(made)
        elif isinstance(body, GetDelegationToken):
            own = self._asked[answer.client_id, answer.call_id]
            self.held[own.user].append(own.of_token(answer.index))

    def _signer(self, request: Request, digest: bytes) -> Credentials | None:
        """Return what a request is signed with: mostly the newest secret of its caller, at times another or a token."""
        if request.caller == OPERATOR.user:
            return OPERATOR
        held = self.held.get(request.caller)
        if held and not isinstance(request.body, GetDelegationToken) and digest[0] < 100:
            return held[digest[1] % len(held)]
        return self.credentials.get(request.caller)

    def register(self, value: bytes) -> bytes:
        """Sign a request as its caller, or prove it."""
        request, digest = decode_as(Request, value), xxh3_128_digest(value)
        own = self._signer(request, digest)
        is_for_members = is_privileged(request.body)
        if is_for_members and own is OPERATOR:
            self.keyring[value] = SECRET.proof(value)
        elif own is not None:
            self.keyring[value] = sealed_key(own, value)
        if own is not None:
            self.signers[digest] = own.name
            if isinstance(request.body, GetDelegationToken):
                self._asked[request.client_id, request.call_id] = own
        if own is OPERATOR or (own is not None and not is_for_members):
            self.signed.add(digest)
        return super().register(value)

    def forged(self, value: bytes, key: bytes | None) -> None:
        """Send a request with a key that is not right; whatever becomes of it, it has no effect."""
        self.registry[xxh3_128_digest(value)] = decode_as(Request, value)
        if key is not None:
            self.keyring[value] = key
        self.send(value)
        self.note("forged")

    def step(self, faults: Any, action: Action) -> None:
        super().step(faults, action)
        for node in self.nodes.values():
            assert isinstance(node, SignedNode)
            node.look_at_users()


class CallerFaults(Faults):
    """What users and forgers do."""

    world: CallersWorld

    def as_user(self, number: int) -> None:
        client = self.world.users[USERS[number % len(USERS)]]
        self.world.begin(client, _user_body(client, number // len(USERS)))

    def reserve_as_user(self, number: int) -> None:
        """A user reserves blocks, uses them or gives them back; some are another's. At times the bucket becomes his."""
        world = self.world
        user, number = world.users[USERS[number % len(USERS)]], number // len(USERS)
        of, number = (user, user, user, world.users[USERS[0]], world.clients[0])[number % 5], number // 5
        if number % 6 == 0:
            world.begin(world.clients[0], SetBucketProperty(volume=VOLUME, bucket=BUCKETS[0], owner=user.user))
        else:
            world.begin(user, _reservation_body(of, number // 6))

    def give(self, number: int) -> None:
        """The operator, or a user, changes a list."""
        world = self.world
        client = world.clients[0] if number % 3 else world.users[USERS[number // 3 % len(USERS)]]
        world.begin(client, _list_body(number // 6))

    def make_user(self, number: int) -> None:
        user = USERS[number % len(USERS)]
        self.world.begin(self.world.clients[0], CreateUser(user=user, groups=GROUPS[user]))

    def remove_user(self, number: int) -> None:
        self.world.begin(self.world.clients[0], RemoveUser(user=USERS[number % len(USERS)]))

    def rotate_user(self, number: int) -> None:
        user, overlap_ms = USERS[number % len(USERS)], OVERLAPS_MS[number // 2 % len(OVERLAPS_MS)]
        self.world.begin(self.world.clients[0], RotateUser(user=user, overlap_ms=overlap_ms))

    def get_token(self, number: int) -> None:
        self.world.begin(self.world.users[USERS[number % len(USERS)]], GetDelegationToken())

    def cancel_token(self, number: int) -> None:
        """The owner, another user or the operator cancels a token that there is, or was, or never was."""
        world = self.world
        tokens = [one.name for held in world.held.values() for one in held if one.name.number]
        name = tokens[number % len(tokens)] if tokens else TokenName(user=USERS[0], generation=1, number=1)
        owner, other = world.users[name.user], world.users[USERS[number // 8 % len(USERS)]]
        client = (owner, owner, other, world.clients[0])[number // 16 % 4]
        world.begin(client, CancelDelegationToken(owner=name.user, number=name.number))

    def forge(self, number: int) -> None:
        world, rng = self.world, random.Random(number)
        user = rng.choice((*USERS, OPERATOR.user))
        mine = world.credentials.get(rng.choice(USERS)) or Credentials("ann:1", OTHER_SECRET)
        prefix = client_prefix(user) if rng.random() < 0.7 else client_prefix(rng.choice(USERS))
        request = Request(
            client_id=prefix + rng.randbytes(10), call_id=number + 1, first_sent_at_ms=START_MS + world.scheduler.now_ms,
            answered_below=0, reply_partition=0, caller=user,
            body=_user_body(world.clients[0], rng.randrange(2**20)) if rng.random() < 0.8 else RemoveUser(user="ann"),
        )  # fmt: skip
        value = encode(request)
        stolen = Credentials(world.credentials[user].token if user in world.credentials else "operator:0", OTHER_SECRET)
        keys = (
            None,
            sealed_key(stolen, value),
            sealed_key(mine, value + b"x"),
            sealed_key(mine, value)[:-1],
            rng.randbytes(40),
        )
        key = rng.choice(keys)
        if mine.user != user or request.client_id[:6] != client_prefix(user):
            key = rng.choice((*keys, sealed_key(mine, value)))
        world.forged(value, key)


def _user_body(client: Client, pick: int) -> RequestBody:
    kind, pick = pick % 20, pick // 20
    bucket, pick = BUCKETS[pick % 8 == 0], pick // 8
    key, pick = NAMES_OF_KEYS[pick % len(NAMES_OF_KEYS)], pick // len(NAMES_OF_KEYS)
    if kind < 7:
        return PutKey(volume=VOLUME, bucket=bucket, key=key, data=bytes([pick % 251]) * (pick % 40))
    if kind < 9:
        return CreateKey(volume=VOLUME, bucket=bucket, key=key, size=0)
    if kind < 12 and client.sessions:
        where, name, session = client.sessions[pick % len(client.sessions)]
        return CommitKey(volume=VOLUME, bucket=where, key=name, session_id=session.session_id, size=0)
    if kind < 15:
        return DeleteKey(volume=VOLUME, bucket=bucket, key=key)
    if kind < 17:
        return RenameKey(volume=VOLUME, bucket=bucket, from_key=key, to_key=NAMES_OF_KEYS[pick % len(NAMES_OF_KEYS)])
    if kind < 18:
        return CreateBucket(volume=VOLUME, bucket=bucket)
    return SetBucketProperty(volume=VOLUME, bucket=bucket, owner=USERS[pick % 2])


def _reservation_body(of: Client, pick: int) -> RequestBody:
    """Choose what to ask for about a client's reservations.

    It is right in itself: what is not is refused before rights are judged.
    """
    kind, pick = pick % 8, pick // 8
    bucket, pick = BUCKETS[pick % 8 == 0], pick // 8
    if kind < 2 or not of.reservations:
        return ReserveBlocks(volume=VOLUME, bucket=bucket, count=1 + pick % 3)
    place, pick = pick % len(of.reservations), pick // len(of.reservations)
    where, given = of.reservations[place]
    if kind < 3:
        return ReleaseBlocks(volume=VOLUME, bucket=where, session_id=given.session_id)
    name, pick = NAMES_OF_KEYS[pick % len(NAMES_OF_KEYS)], pick // len(NAMES_OF_KEYS)
    blocks = given.blocks or [ABSENT]
    return commit_reserved(given, where, name, [blocks[pick % len(blocks)]], 1 + pick % 9)


def _list_body(pick: int) -> ChangeAcl:
    kind, pick = ("VOLUME", "BUCKET", "BUCKET", "KEY", "PREFIX")[pick % 5], pick // 5
    (type_, name), pick = WHO[pick % len(WHO)], pick // len(WHO)
    rights, pick = RIGHTS[pick % len(RIGHTS)], pick // len(RIGHTS)
    change, pick = ("ADD", "ADD", "ADD", "SET", "REMOVE")[pick % 5], pick // 5
    scope, pick = ("ACCESS", "ACCESS", "DEFAULT")[pick % 3], pick // 3
    of = {"KEY": NAMES_OF_KEYS[pick % len(NAMES_OF_KEYS)], "PREFIX": PREFIX}.get(kind, "")
    return ChangeAcl(
        kind=kind, volume=VOLUME, bucket="" if kind == "VOLUME" else BUCKETS[pick % 8 == 0], name=of, change=change,
        acls=[Acl(type=type_, name=name, rights=rights, scope=scope)],
    )  # fmt: skip


def caller_actions(seed: int) -> list[Action]:
    """Return the actions of a seed: those of the other worlds, with callers; rights are as old as the newest level."""
    rng = random.Random(f"callers {seed}")
    actions = [one for one in actions_of(seed) if one[0] != "begin_at_level"]
    actions[BEGUN:BEGUN] = BEGINNING
    for name, times in CALLS.items():
        for _ in range(times):
            actions.insert(rng.randrange(BEGUN + len(BEGINNING), len(actions)), (name, rng.getrandbits(24)))
    begun = BEGUN + len(BEGINNING)
    for place in sorted((rng.randrange(begun, len(actions)) for _ in range(RESERVATIONS)), reverse=True):
        user = rng.randrange(len(USERS))
        asked = [("reserve_as_user", rng.getrandbits(23) << 1 | user) for _ in range(4)]
        actions[place:place] = [asked[0], *SETTLE, *asked[1:]]
    return actions


def simulate_callers(seed: int) -> tuple[CallersWorld, Failure | None]:
    """Run a seed."""
    world = CallersWorld()
    return world, run(caller_actions(seed), world, CallerFaults)
