"""The installing side's decisions: each row of its table, and that every run of events ends."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from replicated_db.core.bootstrap.bootstrap_machine import (
    MAX_LISTINGS_PER_PEER,
    MAX_NEW_SEARCHES,
    MAX_ROUNDS,
    MAX_WRONG_CONTENTS,
    AskListing,
    BootstrapMachine,
    BootstrapState,
    Check,
    Checked,
    CheckFailed,
    Discard,
    FetchContent,
    Fetched,
    GiveUpBootstrap,
    Install,
    Listed,
    Mark,
    PeerFailed,
    PeersSeen,
    Release,
    SeekPeers,
    WrongContent,
)
from replicated_db.core.bootstrap.listing import (
    MAX_NUMBER,
    MAX_TEXT_CHARACTERS,
    BadListing,
    Content,
    ListedFile,
    ListedPosition,
    Listing,
)
from replicated_db.core.bootstrap.peer_choice import Choice, PeerView, ServingPeer, Wanted, choose, view_from
from schemas.transitions import NoSuchTransition

ONE, TWO = ServingPeer("n1", "n1:1"), ServingPeer("n2", "n2:1")
WANTED = Wanted(cluster="test", shard=0, shards=1, own_offset=5, first_offset=10, least_offset=0)
SMALL, LARGE = Content("a" * 32, 10), Content("b" * 32, 1000)


def listing(peer: ServingPeer = ONE, offset: int = 50, *contents: Content, **changed: Any) -> Listing:
    made = Listing(
        transfer="f" * 32, node=peer.node, cluster="test", shard=0, shards=1,
        position=ListedPosition(term=1, index=9, offset=offset, record_hash=bytes(16)), leader="n1",
        files=tuple(ListedFile(f"db/{number:06}.sst", one) for number, one in enumerate(contents)), links=(),
        kept=frozenset(), remove=frozenset(),
    )  # fmt: skip
    return replace(made, **changed)


def machine(**options: Any) -> BootstrapMachine:
    made = BootstrapMachine(WANTED, **({"searches": 2, "last_round_bytes": 100} | options))
    assert made.begin() == [SeekPeers(pause=False)]
    return made


def seen(*peers: ServingPeer) -> PeersSeen:
    return PeersSeen(Choice(usable=peers, refused=()))


def listed(*contents: Content, peer: ServingPeer = ONE, have: frozenset[Content] = frozenset()) -> Listed:
    return Listed(listing(peer, 50, *contents), have)


def test_the_way_without_a_fault():
    run = machine()
    assert run.on(seen(ONE, TWO)) == [AskListing(ONE, 1)]
    event = listed(SMALL, LARGE)
    assert run.on(event) == [Mark(ONE, event.listing), FetchContent(ONE, "f" * 32, SMALL)]
    assert run.on(Fetched(SMALL)) == [FetchContent(ONE, "f" * 32, LARGE)]
    assert run.on(Fetched(LARGE)) == [AskListing(ONE, 2)]  # 1,010 bytes are more than a last round's 100
    event = listed(SMALL, LARGE, have=frozenset((SMALL, LARGE)))
    assert run.on(event) == [Mark(ONE, event.listing), Check(event.listing)]
    assert run.on(Checked()) == [Install(event.listing), Release(ONE, "f" * 32)]
    assert (run.state, run.ended, run.fetched_bytes, run.rounds) == (BootstrapState.DONE, True, 1010, 2)


def test_a_small_round_is_the_last_one():
    run = machine()
    run.on(seen(ONE))
    run.on(listed(SMALL))
    assert [type(one) for one in run.on(Fetched(SMALL))] == [Check]


def test_rounds_are_bounded():
    run = machine()
    run.on(seen(ONE))
    for number in range(MAX_ROUNDS):
        content = Content(f"{number:032x}", 1000)
        run.on(listed(content))
        last = run.on(Fetched(content))
    assert [type(one) for one in last] == [Check]


def test_nobody_to_ask():
    run = machine(searches=3)
    refused = Choice(usable=(), refused=("n1 at n1:1: it is flagged",))
    assert run.on(PeersSeen(refused)) == [SeekPeers(pause=True)]
    assert run.on(PeersSeen(refused)) == [SeekPeers(pause=True)]
    assert run.on(PeersSeen(refused)) == [GiveUpBootstrap("n1 at n1:1: it is flagged")]
    assert run.state is BootstrapState.FAILED


def test_a_peer_appears_after_a_while():
    run = machine()
    run.on(seen())
    assert run.on(seen(TWO)) == [AskListing(TWO, 1)]


def test_a_peer_that_fails_is_asked_again_and_then_the_next():
    run = machine()
    run.on(seen(ONE, TWO))
    for _ in range(MAX_LISTINGS_PER_PEER - 1):
        assert run.on(PeerFailed("silent")) == [AskListing(ONE, 1)]
    assert run.on(PeerFailed("silent")) == [AskListing(TWO, 1)]
    for _ in range(MAX_LISTINGS_PER_PEER - 1):
        run.on(PeerFailed("busy"))
    assert run.on(PeerFailed("busy")) == [GiveUpBootstrap("n1 at n1:1: silent; n2 at n2:1: busy")]


def fail_until(run: BootstrapMachine, last: type) -> Any:
    """Have the peer that is asked fail until something else than its listing is wanted; return what."""
    while isinstance(found := run.on(PeerFailed("it restarts"))[-1], AskListing):
        pass
    assert isinstance(found, last)
    return found


def test_peers_that_are_restarted_one_after_the_other_are_sought_again():
    """Each of them has failed once, and serves again: what was fetched is of use, and the log may be long."""
    run = machine(searches=1)
    run.on(seen(ONE, TWO))
    run.on(listed(SMALL, LARGE))
    assert fail_until(run, SeekPeers) == SeekPeers(pause=True)
    assert run.on(seen(TWO)) == [AskListing(TWO, 2)]
    event = listed(SMALL, peer=TWO, have=frozenset((SMALL,)))
    assert run.on(event) == [Mark(TWO, event.listing), Check(event.listing)]


def test_a_run_that_a_peer_has_served_waits_for_it_but_not_for_ever():
    run = machine(searches=1)
    run.on(seen(ONE))
    run.on(listed(SMALL))
    searches = 0
    while not run.ended:
        searches += isinstance(
            run.on(PeerFailed("no") if run.state is not BootstrapState.SEEKING else seen())[-1], SeekPeers
        )
    assert searches == MAX_NEW_SEARCHES


def test_a_peer_whose_checkpoint_was_wrong_is_not_asked_again():
    run = machine(searches=9)
    run.on(seen(ONE, TWO))
    run.on(listed())
    run.on(CheckFailed("its digest differs"))
    assert fail_until(run, SeekPeers) == SeekPeers(pause=True)
    assert run.on(seen(ONE, TWO)) == [AskListing(TWO, 2)]


def test_nobody_waits_for_peers_that_have_never_served():
    run = machine(searches=9)
    run.on(seen(ONE))
    assert isinstance(fail_until(run, GiveUpBootstrap), GiveUpBootstrap)


def test_a_transfer_that_breaks_is_listed_anew():
    run = machine()
    run.on(seen(ONE))
    run.on(listed(SMALL, LARGE))
    run.on(Fetched(SMALL))
    assert run.on(PeerFailed("404: the transfer has ended")) == [AskListing(ONE, 2)]
    event = listed(SMALL, LARGE, have=frozenset((SMALL,)))
    assert run.on(event) == [Mark(ONE, event.listing), FetchContent(ONE, "f" * 32, LARGE)]


def test_a_wrong_content_is_fetched_again_and_then_from_another_peer():
    run = machine()
    run.on(seen(ONE, TWO))
    run.on(listed(SMALL))
    for _ in range(MAX_WRONG_CONTENTS - 1):
        assert run.on(WrongContent(SMALL)) == [FetchContent(ONE, "f" * 32, SMALL)]
    assert run.on(WrongContent(SMALL)) == [Release(ONE, "f" * 32), AskListing(TWO, 2)]


def test_a_candidate_that_is_refused_is_discarded():
    run = machine()
    run.on(seen(ONE, TWO))
    run.on(listed())
    assert run.on(CheckFailed("its digest differs")) == [Release(ONE, "f" * 32), Discard(), AskListing(TWO, 2)]
    run.on(listed(peer=TWO))
    assert run.on(CheckFailed("it is flagged")) == [
        Release(TWO, "f" * 32), Discard(),
        GiveUpBootstrap("n1 at n1:1: its digest differs; n2 at n2:1: it is flagged"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cluster": "other"}, "its cluster is 'other', not 'test'"),
        ({"shard": 3}, "its shard is 3, not 0"),
        ({"shards": 4}, "its shards is 4, not 1"),
        ({"node": "n9"}, "n9 answers there"),
        ({"offset": 5}, "it stands at offset 5, and this replica at 5 already"),
        ({"offset": 9}, "it stands at offset 9, and the log begins at 10"),
    ],
)
def test_a_listing_that_does_not_do(changed: dict[str, Any], said: str):
    run = machine()
    run.on(seen(ONE))
    offset = changed.pop("offset", 50)
    given = listing(ONE, offset, **changed)
    assert run.on(Listed(given, frozenset())) == [Release(ONE, "f" * 32), GiveUpBootstrap(f"n1 at n1:1: {said}")]


def test_an_event_that_does_not_belong():
    run = machine()
    with pytest.raises(NoSuchTransition, match=r"Checked cannot happen in BootstrapState\.SEEKING"):
        run.on(Checked())
    run.on(seen(ONE))
    run.on(listed(SMALL))
    with pytest.raises(ValueError, match="was not asked for"):
        run.on(Fetched(LARGE))


@pytest.mark.parametrize("seed", range(300))
def test_every_run_ends(seed: int):
    """Whatever peers do, however files come and go, a run ends in DONE or FAILED after a bounded number of events."""
    chance = random.Random(seed)
    run = machine(searches=chance.randint(1, 4))
    have: set[Content] = set()
    instructions, events = run._on_peers(seen(*chance.sample((ONE, TWO), chance.randint(0, 2)))), 0
    while not run.ended:
        events += 1
        assert events < 2_000
        match instructions[-1]:
            case SeekPeers():
                event: Any = seen(*chance.sample((ONE, TWO), chance.randint(0, 2)))
            case AskListing(peer=peer):
                contents = [Content(f"{chance.randrange(40):032x}", 90) for _ in range(chance.randint(0, 8))]
                good = Listed(listing(peer, chance.choice((3, 50)), *contents), frozenset(have))
                event = chance.choice((good, good, PeerFailed("no")))
            case FetchContent(content=content):
                event = chance.choice((Fetched(content), Fetched(content), WrongContent(content), PeerFailed("no")))
                if isinstance(event, Fetched):
                    have.add(content)
            case Check():
                event = chance.choice((Checked(), CheckFailed("no")))
            case last:
                pytest.fail(f"{last} leads to nothing")
        instructions = run.on(event)
    done = run.state is BootstrapState.DONE
    assert any(isinstance(one, Install) for one in instructions) == done
    assert any(isinstance(one, GiveUpBootstrap) for one in instructions) == (not done)


def test_the_leader_is_asked_first_then_who_stands_furthest():
    def view(name: str, offset: int, **changed: Any) -> PeerView:
        own: dict[str, Any] = {"peer": ServingPeer(name, f"{name}:1"), "node": name, "cluster": "test", "leads": False}
        return PeerView(**{**own, "shard": 0, "shards": 1, "offset": offset, "flagged": False, **changed})

    found = choose(
        WANTED,
        [
            view("n1", 60), view("n2", 70), view("n3", 50, leads=True), view("n4", 99, flagged=True), view("n5", 5),
            view("n6", 99, node="x"), view("n7", 99, cluster="other"), view("n8", 8),
        ],
    )  # fmt: skip
    assert [peer.node for peer in found.usable] == ["n3", "n2", "n1"]
    assert [text.partition(":1: ")[2] for text in found.refused] == [
        "its replica is flagged: it has diverged",
        "it stands at offset 5, and this replica at 5 already",
        "x answers there",
        "its cluster is 'other', not 'test'",
        "it stands at offset 8, and the log begins at 10",
    ]


VIEW = {
    "node": "n1", "cluster": "test", "shard": 0, "shards": 1, "offset": -1, "leads": False, "flagged": True, "holds": None,
}  # fmt: skip


def test_what_a_peer_says_of_itself():
    found = view_from(ONE, VIEW)
    assert (found.peer, found.node, found.offset, found.leads, found.flagged) == (ONE, "n1", -1, False, True)
    longest = view_from(ONE, VIEW | {"cluster": "c" * MAX_TEXT_CHARACTERS, "offset": MAX_NUMBER})
    assert (len(longest.cluster), longest.offset) == (MAX_TEXT_CHARACTERS, MAX_NUMBER)
    assert view_from(ONE, VIEW | {"node": "n"}).node == "n", "a name of one character is one"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"node": ""}, "node: a text of"), ({"cluster": 5}, "cluster: a text of"),
        ({"cluster": "c" * (MAX_TEXT_CHARACTERS + 1)}, "cluster: a text of"), ({"shard": -1}, "shard: a number in 0"),
        ({"shards": 0}, "shards: a number in 1"), ({"offset": -2}, "offset: a number in -1"),
        ({"offset": MAX_NUMBER + 1}, "offset: a number"), ({"offset": True}, "offset: a number"),
        ({"leads": 1}, "leads: true or false"), ({"flagged": None}, "flagged: true or false"),
    ],
)  # fmt: skip
def test_what_a_peer_may_not_say_of_itself(changed: dict[str, Any], said: str):
    with pytest.raises(BadListing, match=said):
        view_from(ONE, VIEW | changed)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (("other", 0, 1, 50), "its cluster is 'other', not 'test'"), (("test", 1, 1, 50), "its shard is 1, not 0"),
        (("test", 0, 2, 50), "its shards is 2, not 1"), (("test", 0, 1, 5), "stands at offset 5, and this replica at 5"),
        (("test", 0, 1, 9), "stands at offset 9, and the log begins at 10"),
        (("test", 0, 1, 19), "stands at offset 19: replaying the log up to there is as good"),
    ],
)  # fmt: skip
def test_what_speaks_against_a_checkpoint(view: tuple[str, int, int, int], said: str):
    wanted = replace(WANTED, least_offset=20)
    assert said in str(wanted.against(*view))
    assert wanted.against("test", 0, 1, 20) is None
    assert replace(wanted, least_offset=0).against("test", 0, 1, 10) is None
