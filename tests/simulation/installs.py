"""A simulated cluster whose log is trimmed and whose disks are lost: nodes install each other's checkpoints.

The machine, the plan of files and the checks of a candidate are the real ones. Files are a store's families, one file for each; a
transfer lives in the serving node's memory. Beside the three nodes a stranger answers, whose log is another cluster's: whatever it lists
must be refused. What is left out here: the disk (``tests/unit/replicated_db/shell/test_bootstrap.py`` kills installs on a real one).
"""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from xxhash import xxh3_128_hexdigest

from om_processors.execution.service import OM_FAMILIES
from replicated_db.core.bootstrap.bootstrap_machine import (
    AskListing,
    BootstrapMachine,
    Check,
    Checked,
    CheckFailed,
    Discard,
    FetchContent,
    Fetched,
    GiveUpBootstrap,
    Install,
    Listed,
    PeerFailed,
    PeersSeen,
    Release,
    SeekPeers,
    WrongContent,
)
from replicated_db.core.bootstrap.file_plan import CarriedFile, offer, placement
from replicated_db.core.bootstrap.listing import (
    Content,
    ListedFile,
    ListedPosition,
    Listing,
    TransferRequest,
    listing_from,
    request_from,
)
from replicated_db.core.bootstrap.peer_choice import PeerView, ServingPeer, Wanted, choose
from replicated_db.core.errors import NeedsCheckpoint, StopProcess
from replicated_db.core.log.position import ANCHOR_KEY, FLAG_KEY, POSITION_KEY, UNFLAGGED_KEY, Position
from replicated_db.core.ports import LogUnavailable, OffsetOutOfRange, StoreView
from replicated_db.core.tables.column_families import LOCAL_FAMILIES, TRANSACTION_INFO
from replicated_db.shell.bootstrap.bootstrap import NoPeerServes
from replicated_db.shell.bootstrap.candidate_check import CandidateRefused, _check
from replicated_db.shell.startup import check_beginning, check_replica
from tests.simulation.cluster import CLUSTER, Node, Store
from tests.simulation.faults import Faults, actions_of
from tests.simulation.invariants import Invariants
from tests.simulation.scheduler import Killed
from tests.simulation.world import Action, World

ALL_FAMILIES = (*OM_FAMILIES.names, *LOCAL_FAMILIES)
STRANGER = "stranger"
LEFT_OUT = ("damage_row", "cut_log", "poison_log", "begin_at_level")
"""Faults of which a cluster recovers only by its whole log."""

EXTRA = ("trim_log", "trim_log", "lose_disk", "wrong_content", "restart", "restart", "die_installing", "die_installing")
EXTRA_SHARE = 0.12

AFTERWARDS = "the first step afterwards"
STEPS = ("SeekPeers", "AskListing", "Mark", "FetchContent", "Check", "Install", "Release", AFTERWARDS)
"""Where an install may be killed."""


@dataclass(slots=True)
class Transfer:
    """A checkpoint in a serving node's memory."""

    files: dict[str, bytes]


class InstallingNode(Node):
    """A node that installs a peer's checkpoint when the log does not reach its replica."""

    peers: dict[str, InstallingNode]
    strange: Store | None = None
    at: str = ""
    """The instruction that an install is about to carry out; empty: the node installs nothing."""
    dies_before: str = ""

    def boot(self) -> None:
        self.transfers: dict[str, Transfer] = {}
        self.at = ""
        if not hasattr(self, "pool"):
            self.pool: dict[Content, bytes] = {}
            self.flips = 0
        super().boot()

    def crash(self, lost_writes: int = 0) -> None:
        """Count at which step of an install it happened."""
        if self.at:
            self.seen[f"crash before {self.at}"] += 1
        self.at = ""
        super().crash(lost_writes)

    def _follow(self) -> None:
        while True:
            try:
                check_replica(
                    self.replica, self.log, lambda *_, **__: None, now_s=lambda: self.scheduler.now_ms / 1000,
                    sleep=self._sleep,
                )  # fmt: skip
                check_beginning(self.replica, self.log)
                break
            except NeedsCheckpoint:
                self._install_checkpoint()
            except LogUnavailable:
                self._sleep(1)
        super()._follow()

    # -- serving -----------------------------------------------------------------------------------------------------

    def view_of(self, peer: InstallingNode) -> PeerView:
        replica = peer.replica
        return PeerView(
            peer=ServingPeer(peer.name, peer.name), node=peer.name, cluster=CLUSTER, shard=0, shards=1,
            offset=replica.position.offset, leads=peer.loop.leading, flagged=replica.evidence is not None,
        )  # fmt: skip

    def serve(self, request: TransferRequest, transfer: str) -> Listing:
        """Take a checkpoint; raises ValueError if this replica serves nobody."""
        if self.replica.evidence is not None or self.replica.position.offset < 0:
            raise ValueError("flagged or empty")
        self.replica.flush()
        return self._listed(self.name, self.store, self.replica.position, request, transfer, self.transfers)

    @staticmethod
    def _listed(
        name: str, store: Store, position: Position, request: TransferRequest, transfer: str,
        transfers: dict[str, Transfer],
    ) -> Listing:  # fmt: skip
        files = {f"db/{cf}.sst": _rows_of(store, cf) for cf in ALL_FAMILIES}
        files["db/CURRENT"] = transfer.encode()
        for checkpoint in store.checkpoint_names():
            view = store.checkpoints[checkpoint]
            files |= {f"checkpoints/{checkpoint}/{cf}.sst": _rows_of(view, cf) for cf in ALL_FAMILIES}
        found = [
            CarriedFile(file=ListedFile(path, content_of(data)), inode=(1, number))
            for number, (path, data) in enumerate(files.items())
        ]
        transfers[transfer] = Transfer({content_of(data).digest: data for data in files.values()})
        made = offer(found, request)
        return Listing(
            transfer=transfer, node=name, cluster=CLUSTER, shard=0, shards=1, leader=position.leader,
            position=ListedPosition(term=position.term, index=position.index, offset=position.offset,
                                    record_hash=position.record_hash),
            files=made.files, links=made.links, kept=made.kept, remove=made.remove,
        )  # fmt: skip

    # -- installing --------------------------------------------------------------------------------------------------

    def _install_checkpoint(self) -> None:
        try:
            self._run_install()
        finally:
            self.at = ""
        self._open()

    def _run_install(self) -> None:
        wanted = Wanted(
            cluster=CLUSTER, shard=0, shards=1, own_offset=self.replica.position.offset,
            first_offset=self.log.partition.first, least_offset=0,
        )  # fmt: skip
        machine = BootstrapMachine(wanted, searches=4, last_round_bytes=2_000)
        instructions = machine.begin()
        asked: set[str] = set()
        while True:
            event: Any = None
            for instruction in instructions:
                self._come_to(type(instruction).__name__)
                event = self._carry_out(instruction, wanted) or event
                asked |= {instruction.peer.node} if isinstance(instruction, AskListing) else set()
            if machine.ended:
                break
            instructions = machine.on(event)
        self._come_to(AFTERWARDS)
        self.seen["installed"] += 1
        self.seen["two peers in one install"] += len(asked) > 1
        self.seen["a second listing in one install"] += machine.rounds > 1

    def _come_to(self, step: str) -> None:
        """Let others run, and faults happen, before a step."""
        self.at = step
        self.scheduler.wait()
        if self.dies_before == step:
            self.dies_before = ""
            self.seen[f"crash before {step}"] += 1
            raise Killed

    def _carry_out(self, instruction: Any, wanted: Wanted) -> Any:
        match instruction:
            case SeekPeers(pause=pause):
                if pause:
                    self._sleep(1)
                views = [self.view_of(peer) for peer in self.peers.values() if peer is not self and peer.ready]
                if self.strange is not None:
                    position = _position_in(self.strange)
                    views.append(
                        PeerView(peer=ServingPeer(STRANGER, STRANGER), node=STRANGER, cluster=CLUSTER, shard=0,
                                 shards=1, offset=position.offset, leads=True, flagged=False)
                    )  # fmt: skip
                choice = choose(wanted, views)
                self.seen["old peer passed over"] += sum("it stands at offset" in word for word in choice.refused)
                return PeersSeen(choice)
            case AskListing(peer=peer):
                return self._ask(peer)
            case FetchContent(peer=peer, transfer=transfer, content=content):
                return self._fetch(peer, transfer, content)
            case Check(listing=listing):
                return self._check(listing)
            case Release(peer=peer, transfer=transfer):
                self._transfers_of(peer).pop(transfer, None)
            case Discard():
                self.pool.clear()
            case Install(listing=listing):
                store = self._built(listing)
                store.write([(TRANSACTION_INFO, FLAG_KEY, None), (TRANSACTION_INFO, UNFLAGGED_KEY, None)])
                store.sync()
                self.store = store
                self.pool.clear()
            case GiveUpBootstrap(reason=reason):
                raise NoPeerServes(reason)
        return None

    def _ask(self, peer: ServingPeer) -> Any:
        request = TransferRequest(
            asker=self.name, cluster=CLUSTER, shard=0, shards=1, offset=self.replica.position.offset,
            have=frozenset(self.pool), folders={},
        )  # fmt: skip
        request = request_from(request.to_json())
        transfer = xxh3_128_hexdigest(repr((self.name, self.scheduler.now_ms, self.seen["listing"])).encode())
        self.seen["listing"] += 1
        if peer.node == STRANGER:
            assert self.strange is not None
            position = _position_in(self.strange)
            listing = self._listed(STRANGER, self.strange, position, request, transfer, self.strange_transfers)
        else:
            serving = self.peers[peer.node]
            if not serving.ready or not serving.running:
                return PeerFailed("no answer")
            try:
                listing = serving.serve(request, transfer)
            except ValueError as error:
                return PeerFailed(str(error))
        return Listed(listing_from(listing.to_json()), frozenset(self.pool))

    strange_transfers: dict[str, Transfer] = {}  # noqa: RUF012 - one stranger, whoever asks

    def _transfers_of(self, peer: ServingPeer) -> dict[str, Transfer]:
        return self.strange_transfers if peer.node == STRANGER else self.peers[peer.node].transfers

    def _fetch(self, peer: ServingPeer, transfer: str, content: Content) -> Any:
        held = self._transfers_of(peer).get(transfer)
        if held is None or (peer.node != STRANGER and not self.peers[peer.node].running):
            self.seen["transfer broke"] += 1
            return PeerFailed("the transfer has ended")
        data = held.files[content.digest]
        if self.flips:
            self.flips -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        if content_of(data) != content:
            self.seen["content came wrong"] += 1
            return WrongContent(content)
        self.pool[content] = data
        return Fetched(content)

    def _built(self, listing: Listing) -> Store:
        stores: dict[str, Store] = defaultdict(Store)
        for placed in placement(listing):
            for path in placed.paths:
                folder, _, name = path.rpartition("/")
                if (family := name.removesuffix(".sst")) in ALL_FAMILIES:
                    rows = pickle.loads(self.pool[placed.content])
                    stores[folder].write([(family, key, value) for key, value in rows])
        store = stores.pop("db")
        for folder, kept in stores.items():
            store.checkpoints[folder.removeprefix("checkpoints/")] = kept.snapshot()
            self.seen["checkpoint installed"] += 1
        store.sync()
        return store

    def _check(self, listing: Listing) -> Any:
        store = self._built(listing)
        try:
            _check(
                cast(Any, store), self.identity, OM_FAMILIES, self.log, listing.position, lambda *_: None,
                lambda: self.scheduler.now_ms / 1000, self._sleep,
            )  # fmt: skip
        except (CandidateRefused, StopProcess, ValueError) as error:
            self.seen["stranger refused" if listing.node == STRANGER else "candidate refused"] += 1
            return CheckFailed(str(error))
        except LogUnavailable as error:
            return CheckFailed(f"no log: {error}")
        return Checked()

    # -- what is durable ---------------------------------------------------------------------------------------------

    def durable_anchor(self) -> int:
        """Return the offset from which on the log must stay, should this node lose power now."""
        position = _position_in(self.store, durable=True)
        if position.seq:
            return position.offset
        stored = durable(self.store, ANCHOR_KEY)
        return position.offset if stored is None else Position.decode(stored).offset


def _rows_of(view: StoreView, cf: str) -> bytes:
    return pickle.dumps(list(view.iterate(cf, b"")))


def content_of(data: bytes) -> Content:
    return Content(xxh3_128_hexdigest(data), len(data))


def durable(store: Store, key: bytes) -> bytes | None:
    """Return a row of the transaction-info family as it is after a loss of power that takes all that is not synced."""
    for undone in store.undo:
        for cf, changed, before in undone:
            if (cf, changed) == (TRANSACTION_INFO, key):
                return before
    return store.get(TRANSACTION_INFO, key)


def _position_in(store: Store, *, durable: bool = False) -> Position:
    read = _durable_position(store) if durable else store.get(TRANSACTION_INFO, POSITION_KEY)
    return Position() if read is None else Position.decode(read)


def _durable_position(store: Store) -> bytes | None:
    return durable(store, POSITION_KEY)


class InstallInvariants(Invariants):
    """A node may stop where the log does not reach it, or no peer can serve; it starts again."""

    def stopped(self, node: Node, error: BaseException) -> None:
        if isinstance(error, NoPeerServes | NeedsCheckpoint):
            self.truth.seen[f"stop: {type(error).__name__}"] += 1
            return
        if isinstance(error, OffsetOutOfRange) and node.fetch_offset < node.log.partition.first:
            self.truth.seen["stop: behind the log's start"] += 1
            return
        super().stopped(node, error)


class InstallWorld(World):
    """A world of nodes that install; ``strange`` is a store of another log, for the stranger (None: there is none)."""

    NODE = InstallingNode
    INVARIANTS = InstallInvariants

    def __init__(self, strange: Store | None = None, say: Any = None) -> None:
        super().__init__(say)
        for node in self.installing():
            node.peers = cast("dict[str, InstallingNode]", self.nodes)
            node.strange = strange

    def installing(self) -> Iterator[InstallingNode]:
        return (cast(InstallingNode, node) for node in self.nodes.values())


class InstallFaults(Faults):
    """The actions, and three more."""

    def trim_log(self, number: int) -> None:
        """The log is trimmed as far as two of three nodes hold durably."""
        world = cast(InstallWorld, self.world)
        second = sorted(node.durable_anchor() for node in world.installing())[1]
        first = second - number % 4
        if first > world.log.first:
            world.log.first = first
            self._done("log trimmed", f"to {first}")

    def die_installing(self, number: int) -> None:
        """A node is killed in its next install, before a certain step, or when it is done."""
        node = cast(InstallingNode, self.world.node(number))
        node.dies_before = STEPS[(number >> 4) % len(STEPS)]

    def lose_disk(self, number: int) -> None:
        """A node's disk is lost, while both others hold durably what the log has no more."""
        world = cast(InstallWorld, self.world)
        victim = world.node(number)
        others = [node for node in world.installing() if node is not victim]
        if all(node.durable_anchor() >= world.log.first for node in others):
            victim.crash()
            victim.store = Store()
            cast(InstallingNode, victim).pool.clear()
            self._done("disk lost", victim.name)

    def wrong_content(self, number: int) -> None:
        """What a node fetches next comes wrong, once or often."""
        cast(InstallingNode, self.world.node(number)).flips += 1 + (number >> 4) % 4
        self._done("wrong content", "")


def install_actions(seed: int) -> list[Action]:
    """Return the actions of a seed, with more of them among them."""
    rng = random.Random(f"installs {seed}")
    actions: list[Action] = []
    for name, number in actions_of(seed):
        if name in LEFT_OUT:
            continue
        actions.append((name, number))
        if len(actions) > 20 and rng.random() < EXTRA_SHARE:
            actions.append((rng.choice(EXTRA), rng.getrandbits(24)))
    return actions


def strange_store() -> Store:
    """Return a replica's store of another log: a world that ran by itself."""
    world = InstallWorld()
    try:
        faults = InstallFaults(world)
        for action in [
            one for one in actions_of(4242) if one[0] in ("assign", "go_on", "deliver", "call", "rebalance")
        ]:
            world.step(faults, action)
        return max(world.installing(), key=lambda node: node.replica.position.offset).store
    finally:
        world.close()


def simulate_installs(seed: int, strange: Store | None, say: Any = None) -> tuple[InstallWorld, BaseException | None]:
    """Run a seed to its end; return its world, and what went wrong."""
    world = InstallWorld(strange if seed % 2 else None, say)
    error: BaseException | None = None
    try:
        faults = InstallFaults(world)
        for action in install_actions(seed):
            world.step(faults, action)
        for node in world.installing():
            node.flips = 0
        world.heal()
    except Exception as failure:  # whatever it is, it has a seed and will be told
        error = failure
    finally:
        world.close()
    return world, error
