"""How a setting is declared, checked, and known by a name that it had before.

A *group* is a dataclass of settings that the same processes read (``for_whom``); a setting is a field of one group. Its
annotation is the type, :func:`setting` says how a value is read (which holds the bounds) and what it is unless it is
set, the docstring below it what it does. On a group, a field's name is its default: ``StreamSettings.flush_bytes``.

The configuration of a process inherits groups, adds who the process is, and gets its *slice* of the table by
:func:`slice_of`. Groups have neither slots nor constructors, since only what inherits them is ever made.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Audience(StrEnum):
    """Who reads a setting."""

    NODE = "nodes"
    DATANODE = "datanodes"
    AUDIT = "audit"
    COMMAND = "commands"
    DASHBOARD = "dashboard"
    CLIENT = "clients"
    STACK = "local stack"


class OldSettingName(FutureWarning):
    """Somebody has given a setting by the name that it had before this release, in a file or a variable.

    Python shows a FutureWarning to those who run programs; a DeprecationWarning only to those who write them.
    """


def setting(
    read: Callable[[Any], T], default: T, *, in_programs: Callable[[Any], T] | None = None, is_new: bool = False
) -> T:  # fmt: skip
    """Declare a setting, as a dataclass's ``field`` does.

    ``read`` takes what a file or a variable gave and returns the value, or raises ValueError saying what is allowed.
    ``in_programs`` likewise, where a configuration made by a program may have values that a person may not set.
    ``is_new``: older software, to which a user may go back, refuses the name. So a file that we write leaves the
    setting out while it has its default.
    """
    declared: T = field(default=default, metadata={"read": read, "check": in_programs or read, "is_new": is_new})
    return declared


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Settings that the same processes read; base of groups and of what inherits them."""

    FOR_WHOM: ClassVar[tuple[Audience, ...]]

    def __init_subclass__(cls, for_whom: tuple[Audience, ...] = ()) -> None:
        """Say who reads the settings of a group; what inherits groups says nothing."""
        super().__init_subclass__()
        if for_whom:
            cls.FOR_WHOM = for_whom

    def check_settings(self) -> None:
        """Raise ValueError, naming setting, value and what is allowed, if one is wrong.

        None may be where it is the default. Text is no number here, nor a list a tuple.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if "check" in one.metadata and not (value is None and one.default is None):
                try:
                    found = one.metadata["check"](value)
                    if type(found) is not type(value):
                        raise ValueError(f"must be given as {found!r}, not {value!r}")
                except ValueError as error:
                    raise ValueError(f"setting '{one.name}': {error}") from error


def slice_of(made: type[SettingsGroup], settings: SettingsGroup) -> dict[str, Any]:
    """Return, as keywords, the settings of all groups that ``made`` is or inherits: a process's slice of the table."""
    groups = [group for group in made.__mro__ if "FOR_WHOM" in vars(group)]
    return {one.name: getattr(settings, one.name) for group in groups for one in fields(group)}


def renamed(given: Mapping[str, Any], names: Mapping[str, str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Return values under present names; ``names`` has the present name of each old one, and ``tell`` hears of it.

    Raises ValueError if a setting is given under both names.
    """
    found = dict(given)
    for old in names.keys() & given.keys():
        new = names[old]
        if new in given:
            raise ValueError(f"'{old}' is the old name of '{new}', which is given, too: leave out '{old}'")
        tell(words_of(old, new))
        found[new] = found.pop(old)
    return found


def words_of(old: str, new: str) -> str:
    """Return what is said of a setting that is given by its old name."""
    return f"setting '{old}' is called '{new}' now; the old name goes with the next release"


def with_old_names(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator: for one release the fields ``names[old]`` are known as ``old``, too.

    The constructor takes old names and objects have them as properties; both warn (DeprecationWarning).
    """

    def decorate(cls: type[T]) -> type[T]:
        construct: Any = cls.__init__

        @functools.wraps(construct)
        def initialize(self: T, **given: Any) -> None:
            construct(self, **renamed(given, names, _warn))

        setattr(cls, "__init__", initialize)  # noqa: B010 - an assignment has another type
        for old, new in names.items():
            setattr(cls, old, property(functools.partial(_by_old_name, old, new)))
        return cls

    return decorate


def _by_old_name(old: str, new: str, owner: object) -> Any:
    warnings.warn(words_of(old, new), DeprecationWarning, stacklevel=2)
    return getattr(owner, new)


def _warn(words: str) -> None:
    warnings.warn(words, DeprecationWarning, stacklevel=4)
