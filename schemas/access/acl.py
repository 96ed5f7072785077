"""The words of access control lists: rights, types and scopes, and their text (Ozone's, decision 0072). Pure.

An entry's text is ``TYPE:NAME:RIGHTS[SCOPE]``, as in ``user:alice:rw[ACCESS]`` or ``world::rl``. Without a scope it is
ACCESS. Rights are letters, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from schemas.records.rows import Acl

READ, WRITE, CREATE, LIST, DELETE, READ_ACL, WRITE_ACL = (1 << bit for bit in range(7))
ALL = (1 << 7) - 1
NONE = 0
"""As the rights of a user's entry: the user may do nothing, whatever other entries say."""

LETTERS = {"r": READ, "w": WRITE, "c": CREATE, "l": LIST, "d": DELETE, "x": READ_ACL, "y": WRITE_ACL}
"""Ozone's letters; ``a`` stands for all of them and ``n`` for none."""
RIGHT_NAMES = {
    READ: "READ", WRITE: "WRITE", CREATE: "CREATE", LIST: "LIST", DELETE: "DELETE", READ_ACL: "READ_ACL",
    WRITE_ACL: "WRITE_ACL",
}  # fmt: skip

USER, GROUP, WORLD = "USER", "GROUP", "WORLD"
ACL_TYPES = (USER, GROUP, WORLD)
ACCESS, DEFAULT = "ACCESS", "DEFAULT"
"""ACCESS is about the object itself; what is created in it inherits its DEFAULT entries."""
ACL_SCOPES = (ACCESS, DEFAULT)

VOLUME, BUCKET, KEY, PREFIX = "VOLUME", "BUCKET", "KEY", "PREFIX"
ACL_OBJECTS = (VOLUME, BUCKET, KEY, PREFIX)
"""What has a list of its own. A prefix is a beginning of keys' names, and ends with a slash."""
ADD, REMOVE, SET = "ADD", "REMOVE", "SET"
ACL_CHANGES = (ADD, REMOVE, SET)

MAX_ACLS = 64
"""Most entries of one object's list."""
MAX_NAME_CHARACTERS = 64
"""Most characters of a user's or group's name."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
_TEXT = re.compile(r"(user|group|world):([^:\[\]]*):([a-z]+)(?:\[(ACCESS|DEFAULT)\])?", re.IGNORECASE)


def name_fault(name: str) -> str | None:
    """Say why a text is no name of a user or group; None if it is one.

    >>> name_fault("alice@example.org"), name_fault("a:b") is None
    (None, False)
    """
    if _NAME.fullmatch(name):
        return None
    return (
        f"{name[:MAX_NAME_CHARACTERS]!r} is no name of a user or group: those are 1 to {MAX_NAME_CHARACTERS} "
        "letters, digits, '.', '_', '@' and '-', the first a letter or digit"
    )


def acl_fault(acl: Acl) -> str | None:
    """Say what is wrong with an entry; None if nothing is."""
    if acl.type not in ACL_TYPES:
        return f"type {acl.type!r} of an entry is none of {', '.join(ACL_TYPES)}"
    if acl.scope not in ACL_SCOPES:
        return f"scope {acl.scope!r} of an entry is none of {', '.join(ACL_SCOPES)}"
    if not 0 <= acl.rights <= ALL:
        return f"rights {acl.rights} of an entry are not in 0..{ALL}"
    if acl.type == WORLD:
        return f"an entry for the world has no name, not {acl.name[:MAX_NAME_CHARACTERS]!r}" if acl.name else None
    return name_fault(acl.name)


def parse_acl(text: str) -> Acl:
    """Return the entry of a text; raises ValueError that says what is wrong.

    >>> parse_acl("user:alice:rw[DEFAULT]").rights == READ | WRITE
    True
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no entry: TYPE:NAME:RIGHTS[SCOPE], as in user:alice:rw[ACCESS] or world::rl")
    kind, name, letters, scope = found[1].upper(), found[2], found[3].lower(), (found[4] or ACCESS).upper()
    rights = NONE
    for letter in letters:
        if letter == "a":
            rights = ALL
        elif letter in LETTERS:
            rights |= LETTERS[letter]
        elif letter != "n":
            raise ValueError(f"{letter!r} in {text!r} is no right: {', '.join(LETTERS)}, a (all) and n (none) are")
    acl = Acl(type=kind, name=name, rights=rights, scope=scope)
    if (fault := acl_fault(acl)) is not None:
        raise ValueError(fault)
    return acl


def acl_text(acl: Acl) -> str:
    """Return the text of an entry; :func:`parse_acl` reads it.

    >>> acl_text(parse_acl("world::lr")), acl_text(parse_acl("group:staff:a[DEFAULT]"))
    ('world::rl[ACCESS]', 'group:staff:a[DEFAULT]')
    """
    letters = "".join(letter for letter, right in LETTERS.items() if acl.rights & right) or "n"
    return f"{acl.type.lower()}:{acl.name}:{'a' if acl.rights == ALL else letters}[{acl.scope}]"


def right_names(rights: int) -> str:
    """Return the names of rights.

    >>> right_names(READ | LIST), right_names(ALL), right_names(NONE)
    ('READ, LIST', 'ALL', 'NONE')
    """
    if rights == ALL:
        return "ALL"
    return ", ".join(name for right, name in RIGHT_NAMES.items() if rights & right) or "NONE"


def allows(acls: Iterable[Acl], user: str, groups: Iterable[str], right: int) -> bool:
    """Say whether the ACCESS entries give a user a right: any entry for the user, a group or the world does.

    A user's entry without any right takes all rights away.
    """
    granted, of = NONE, frozenset(groups)
    for acl in acls:
        if acl.scope != ACCESS:
            continue
        if acl.type == USER and acl.name == user:
            if acl.rights == NONE:
                return False
            granted |= acl.rights
        elif acl.type == WORLD or (acl.type == GROUP and acl.name in of):
            granted |= acl.rights
    return granted & right == right


def changed(acls: Iterable[Acl], change: str, entries: Iterable[Acl]) -> list[Acl]:
    """Return a list after a change, in one order for all replicas.

    ADD adds rights to those that an entry has, REMOVE takes rights away, and the entry with its last one; SET replaces
    the list. To add NONE takes all rights out of an entry, which then denies; to remove it removes such an entry.
    """
    after = {} if change == SET else {(acl.scope, acl.type, acl.name): acl.rights for acl in acls}
    for entry in entries:
        at = (entry.scope, entry.type, entry.name)
        if change != REMOVE:
            after[at] = after.get(at, NONE) | entry.rights if entry.rights else NONE
        elif at in after and after[at] & ~entry.rights:
            after[at] &= ~entry.rights
        else:
            after.pop(at, None)
    return [
        Acl(type=kind, name=name, rights=after[scope, kind, name], scope=scope) for scope, kind, name in sorted(after)
    ]


def inherited(acls: Iterable[Acl], *, passes_on: bool) -> list[Acl]:
    """Return the list of something new in a parent: the parent's DEFAULT entries, as ACCESS entries.

    Something that has children itself ``passes_on`` them: it keeps them as DEFAULT entries, too.
    """
    defaults = [acl for acl in acls if acl.scope == DEFAULT]
    if not defaults:
        return []
    own = [Acl(type=acl.type, name=acl.name, rights=acl.rights, scope=ACCESS) for acl in defaults]
    return changed((), SET, [*own, *(defaults if passes_on else ())])
