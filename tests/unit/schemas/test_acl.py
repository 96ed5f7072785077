"""Access control entries: their text, what they give, what becomes of a list."""

from __future__ import annotations

import pytest

from schemas.access import acl as words
from schemas.access.acl import ADD, REMOVE, SET, acl_text, allows, changed, inherited, parse_acl
from schemas.records.rows import Acl


def entries(*texts: str) -> list[Acl]:
    return [parse_acl(text) for text in texts]


def texts(acls: list[Acl]) -> list[str]:
    return [acl_text(acl) for acl in acls]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("user:alice:rw", "user:alice:rw[ACCESS]"), ("USER:alice:wr[default]", "user:alice:rw[DEFAULT]"),
        ("group:staff:a", "group:staff:a[ACCESS]"), ("world::rl[ACCESS]", "world::rl[ACCESS]"),
        ("user:bob:n", "user:bob:n[ACCESS]"), ("user:bob:rwcldxy", "user:bob:a[ACCESS]"), ("world::xy", "world::xy[ACCESS]"),
    ],
)  # fmt: skip
def test_an_entry_as_text(given: str, shown: str):
    assert acl_text(parse_acl(given)) == shown
    assert parse_acl(shown) == parse_acl(given)


@pytest.mark.parametrize(
    "text", ["", "alice:r", "user::r", "user:alice:", "user:alice:q", "user:alice:r[ALL]", "world:alice:r", "role:a:r", "user:a b:r",
             "user:" + "x" * 65 + ":r", "user:alice:r[ACCESS]x"],
)  # fmt: skip
def test_what_is_no_entry(text: str):
    with pytest.raises(ValueError, match=r".+"):
        parse_acl(text)


def test_any_entry_gives_and_an_empty_one_takes_all():
    acls = entries("user:alice:r", "group:staff:w", "world::l", "user:alice:c[DEFAULT]")
    assert allows(acls, "alice", (), words.READ)
    assert allows(acls, "alice", ("staff",), words.READ | words.WRITE | words.LIST)
    assert not allows(acls, "alice", (), words.WRITE)
    assert not allows(acls, "alice", ("staff",), words.CREATE), "a DEFAULT entry is for what is created"
    assert allows(acls, "bob", (), words.LIST)
    assert not allows(acls, "staff", (), words.WRITE), "a user is no group"
    assert not allows([*acls, *entries("user:alice:n")][1:], "alice", ("staff",), words.LIST)


def test_changes():
    acls = entries("user:alice:r", "world::l")
    assert texts(changed(acls, ADD, entries("user:alice:w", "user:bob:r"))) == [
        "user:alice:rw[ACCESS]", "user:bob:r[ACCESS]", "world::l[ACCESS]"
    ]  # fmt: skip
    assert texts(changed(acls, REMOVE, entries("world::l", "user:bob:r", "user:alice:w"))) == ["user:alice:r[ACCESS]"]
    assert texts(changed(acls, SET, entries("user:bob:r"))) == ["user:bob:r[ACCESS]"]
    assert changed(acls, SET, ()) == []
    one, other = entries("user:b:r", "user:a:r"), entries("user:a:r", "user:b:r")
    assert changed(one, ADD, ()) == changed(other, ADD, ()), "one order on all replicas"
    denied = changed((), ADD, entries("user:eve:n"))
    assert texts(denied) == ["user:eve:n[ACCESS]"]
    assert texts(changed(acls, ADD, entries("user:alice:n"))) == ["user:alice:n[ACCESS]", "world::l[ACCESS]"]
    assert changed(denied, REMOVE, entries("user:eve:n")) == []


def test_defaults_are_inherited():
    acls = entries("user:alice:r[DEFAULT]", "user:bob:w[ACCESS]")
    assert texts(inherited(acls, passes_on=False)) == ["user:alice:r[ACCESS]"]
    assert texts(inherited(acls, passes_on=True)) == ["user:alice:r[ACCESS]", "user:alice:r[DEFAULT]"]
    assert inherited(entries("user:bob:w"), passes_on=True) == []
