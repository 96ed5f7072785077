"""What a replica does that installs a peer's checkpoint: states, events, instructions (design, section 7).

======== ============ =================================== ====================================================
state    event        if                                  then
======== ============ =================================== ====================================================
SEEKING  PeersSeen    a peer is usable                    AskListing, LISTING
         PeersSeen    none is, and there is time          Pause, SEEKING
         PeersSeen    none is                             GiveUpBootstrap, FAILED
LISTING  Listed       the listing does                    Mark, then FetchContent (FETCHING) or Check (CHECKING)
         Listed       something speaks against it         Release, the next peer
         PeerFailed   it has been asked seldom            AskListing again, LISTING
         PeerFailed                                       the next peer
FETCHING Fetched      more is missing                     FetchContent, FETCHING
         Fetched      much was fetched, few rounds so far AskListing (the next round), LISTING
         Fetched                                          Check, CHECKING
         WrongContent it happened seldom                  FetchContent again, FETCHING
         WrongContent                                     Release, the next peer
         PeerFailed   as in LISTING
CHECKING Checked                                          Install, DONE
         CheckFailed                                      Release, Discard, the next peer
======== ============ =================================== ====================================================

*The next peer* is the next one of the last answer to SeekPeers: AskListing, LISTING. If there is none, but a peer has
served in this run, and one has only failed since the last search, then peers are sought again: Pause, SEEKING. Nodes
that are restarted one after the other all fail once, and serve again soon. Else GiveUpBootstrap, FAILED.

What ends: after each search a peer is asked for at most MAX_LISTINGS_PER_PEER listings; each listing has a bounded
number of files, and each fetch ends by an event; peers are sought at most ``searches`` times, and MAX_NEW_SEARCHES
times after the first listing. A peer of which the content or the checkpoint was wrong is not asked again. So every run
ends in DONE or FAILED.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from replicated_db.core.bootstrap.file_plan import missing
from replicated_db.core.bootstrap.listing import Content, Listing
from replicated_db.core.bootstrap.peer_choice import Choice, ServingPeer, Wanted
from schemas.transitions import handler_of

LAST_ROUND_BYTES = 16 * 1024 * 1024
"""A round that has fetched no more than this is the last one: what came since is small, and the log has it."""

MAX_ROUNDS = 5
"""Most rounds of one bootstrap; what the last one leaves is replayed from the log."""

MAX_LISTINGS_PER_PEER = 8
"""How often one peer is asked for a listing: for its rounds, and again after failures."""

MAX_WRONG_CONTENTS = 3
"""How often one content may come with a wrong digest from one peer."""

MAX_NEW_SEARCHES = 10
"""How often peers are sought again, at least, by a run that a peer has served already."""


class BootstrapState(Enum):
    """What the installing side is at."""

    SEEKING = "looking for a peer"
    LISTING = "waiting for a listing"
    FETCHING = "fetching files"
    CHECKING = "checking the candidate"
    DONE = "done"
    FAILED = "failed"


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """Peers have been asked where they stand."""

    choice: Choice


@dataclass(frozen=True, slots=True)
class Listed:
    """A listing has come; ``have`` is all content that this node has."""

    listing: Listing
    have: frozenset[Content]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A content is here, and is what its digest says."""

    content: Content


@dataclass(frozen=True, slots=True)
class WrongContent:
    """A content has come whole, and is not what its digest says; it is deleted."""

    content: Content


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """The peer does not answer, refuses, or answers what cannot be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The candidate is whole, its rows are those of its digests, and the log goes on from it."""


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """The candidate may not be installed."""

    reason: str


BootstrapEvent = PeersSeen | Listed | Fetched | WrongContent | PeerFailed | Checked | CheckFailed


# -- instructions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeekPeers:
    """Ask the peers where they stand; PeersSeen follows. With ``pause``, wait a little before."""

    pause: bool


@dataclass(frozen=True, slots=True)
class AskListing:
    """Ask a peer for a listing; Listed or PeerFailed follows."""

    peer: ServingPeer
    round: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Write down whose listing the candidate follows from here on; a candidate of another mark loses its tree."""

    peer: ServingPeer
    listing: Listing


@dataclass(frozen=True, slots=True)
class FetchContent:
    """Fetch a content; Fetched, WrongContent or PeerFailed follows."""

    peer: ServingPeer
    transfer: str
    content: Content


@dataclass(frozen=True, slots=True)
class Check:
    """Put the tree together and check it; Checked or CheckFailed follows."""

    listing: Listing


@dataclass(frozen=True, slots=True)
class Release:
    """Tell the peer that the transfer is no longer needed; nothing follows."""

    peer: ServingPeer
    transfer: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the candidate with all that was fetched; nothing follows."""


@dataclass(frozen=True, slots=True)
class Install:
    """Install the checked candidate; nothing follows."""

    listing: Listing


@dataclass(frozen=True, slots=True)
class GiveUpBootstrap:
    """No peer can serve; nothing follows. ``reason`` names each peer and what was wrong with it."""

    reason: str


Instruction = SeekPeers | AskListing | Mark | FetchContent | Check | Release | Discard | Install | GiveUpBootstrap


class BootstrapMachine:
    """The installing side. :meth:`begin` gives the first instructions, :meth:`on` those after an event.

    They are to be carried out in order; the last one of them leads to the next event, unless the machine has ended.
    """

    def __init__(self, wanted: Wanted, *, searches: int, last_round_bytes: int = LAST_ROUND_BYTES) -> None:
        """``searches``: how often peers are sought until one has served."""
        self.state = BootstrapState.SEEKING
        self.wanted = wanted
        self._searches = searches
        self._last_round_bytes = last_round_bytes
        self._peers: list[ServingPeer] = []
        self._asked: Counter[ServingPeer] = Counter()
        self._wrong: Counter[tuple[ServingPeer, Content]] = Counter()
        self._reasons: dict[str, None] = {}
        self._refused: set[ServingPeer] = set()
        self._one_may_return = False
        self._listing: Listing | None = None
        self._missing: deque[Content] = deque()
        self._round_bytes = 0
        self.rounds = 0
        """Listings that were accepted."""
        self.fetched_bytes = 0
        """Bytes of all contents fetched."""
        self._table: Mapping[tuple[BootstrapState, type], Callable[..., list[Instruction]]] = {
            (BootstrapState.SEEKING, PeersSeen): self._on_peers,
            (BootstrapState.LISTING, Listed): self._on_listed,
            (BootstrapState.LISTING, PeerFailed): self._on_peer_failed,
            (BootstrapState.FETCHING, Fetched): self._on_fetched,
            (BootstrapState.FETCHING, WrongContent): self._on_wrong,
            (BootstrapState.FETCHING, PeerFailed): self._on_peer_failed,
            (BootstrapState.CHECKING, Checked): self._on_checked,
            (BootstrapState.CHECKING, CheckFailed): self._on_check_failed,
        }

    @property
    def ended(self) -> bool:
        """Whether nothing follows any more."""
        return self.state in (BootstrapState.DONE, BootstrapState.FAILED)

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to be fetched in this round."""
        return sum(content.size for content in self._missing)

    def begin(self) -> list[Instruction]:
        """Return the first instructions."""
        self._searches -= 1
        return [SeekPeers(pause=False)]

    def on(self, event: BootstrapEvent) -> list[Instruction]:
        """Take an event, and return what to do. Raises NoSuchTransition for an event that the state does not know."""
        return handler_of(self._table, self.state, event)(event)

    def run(self, carry_out: Callable[[Instruction], BootstrapEvent | None]) -> None:
        """Have instructions carried out until the machine has ended.

        ``carry_out`` returns the event that an instruction leads to, None if nothing follows.
        """
        instructions = self.begin()
        while True:
            event = None
            for instruction in instructions:
                event = carry_out(instruction) or event
            if self.ended:
                return
            if event is None:
                raise RuntimeError(f"{instructions} led to no event")
            instructions = self.on(event)

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_peers(self, event: PeersSeen) -> list[Instruction]:
        self._note(event.choice.refused)
        self._peers = [peer for peer in event.choice.usable if peer not in self._refused]
        self._asked.clear()
        self._one_may_return = False
        return self._ask(self._peers[0]) if self._peers else self._seek_again()

    def _on_listed(self, event: Listed) -> list[Instruction]:
        listing, peer = event.listing, self._peers[0]
        against = self.wanted.against(listing.cluster, listing.shard, listing.shards, listing.position.offset)
        if against is None and listing.node != peer.node:
            against = f"{listing.node} answers there"
        if against is not None:
            return [Release(peer, listing.transfer), *self._refuse(f"{peer}: {against}")]
        if self._listing is None:
            self._searches = max(self._searches, MAX_NEW_SEARCHES)
        self._listing = listing
        self._missing = deque(missing(listing, event.have))
        self._round_bytes = 0
        self.rounds += 1
        return [Mark(peer, listing), *self._go_on()]

    def _on_fetched(self, event: Fetched) -> list[Instruction]:
        if self._missing[0] != event.content:
            raise ValueError(f"content {event.content.digest} was not asked for")
        self._missing.popleft()
        self._round_bytes += event.content.size
        self.fetched_bytes += event.content.size
        return self._go_on()

    def _on_wrong(self, event: WrongContent) -> list[Instruction]:
        peer, listing = self._peers[0], self._current()
        self._wrong[peer, event.content] += 1
        if self._wrong[peer, event.content] < MAX_WRONG_CONTENTS:
            return self._go_on()
        reason = f"{peer}: content {event.content.digest} came wrong {MAX_WRONG_CONTENTS} times"
        return [Release(peer, listing.transfer), *self._refuse(reason)]

    def _on_peer_failed(self, event: PeerFailed) -> list[Instruction]:
        peer = self._peers[0]
        if self._asked[peer] < MAX_LISTINGS_PER_PEER:
            self._note([f"{peer}: {event.reason}"])
            return self._ask(peer)
        self._one_may_return = True
        return self._next_peer(f"{peer}: {event.reason}")

    def _on_checked(self, event: Checked) -> list[Instruction]:  # noqa: ARG002 - the event says it all
        self.state = BootstrapState.DONE
        listing = self._current()
        return [Install(listing), Release(self._peers[0], listing.transfer)]

    def _on_check_failed(self, event: CheckFailed) -> list[Instruction]:
        peer, listing = self._peers[0], self._current()
        return [Release(peer, listing.transfer), Discard(), *self._refuse(f"{peer}: {event.reason}")]

    # -- what follows --------------------------------------------------------------------------------------------------

    def _go_on(self) -> list[Instruction]:
        """Fetch what is missing; when nothing is, ask again or check."""
        peer, listing = self._peers[0], self._current()
        if self._missing:
            self.state = BootstrapState.FETCHING
            return [FetchContent(peer, listing.transfer, self._missing[0])]
        more = self._round_bytes > self._last_round_bytes
        if more and self.rounds < MAX_ROUNDS and self._asked[peer] < MAX_LISTINGS_PER_PEER:
            return self._ask(peer)
        self.state = BootstrapState.CHECKING
        return [Check(listing)]

    def _ask(self, peer: ServingPeer) -> list[Instruction]:
        self.state = BootstrapState.LISTING
        self._asked[peer] += 1
        return [AskListing(peer, self.rounds + 1)]

    def _refuse(self, reason: str) -> list[Instruction]:
        self._refused.add(self._peers[0])
        return self._next_peer(reason)

    def _next_peer(self, reason: str) -> list[Instruction]:
        self._note([reason])
        self._peers.pop(0)
        if self._peers:
            return self._ask(self._peers[0])
        has_served = self._listing is not None
        return self._seek_again() if has_served and self._one_may_return else self._give_up()

    def _seek_again(self) -> list[Instruction]:
        if self._searches <= 0:
            return self._give_up()
        self._searches -= 1
        self.state = BootstrapState.SEEKING
        return [SeekPeers(pause=True)]

    def _give_up(self) -> list[Instruction]:
        self.state = BootstrapState.FAILED
        return [GiveUpBootstrap("; ".join(self._reasons) or "there is no peer")]

    def _note(self, reasons: Iterable[str]) -> None:
        self._reasons.update(dict.fromkeys(reasons))

    def _current(self) -> Listing:
        if self._listing is None:
            raise ValueError(f"no listing while {self.state.value}")
        return self._listing
