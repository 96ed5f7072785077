"""What the two framings on TCP connections have in common: packets of datanodes, and the direct door. Pure.

A frame is a header and a payload. Both headers are fixed and big-endian, and begin alike::

    magic (2) | version (1) | kind (1) | …

Shared is what a header must be before any byte of its payload is waited for (:class:`Framing`), and what the two sides
must have in common (:func:`check_cluster`, :func:`agreed_version`).

Not shared, for the jobs differ:
    - The checksum. Packets are sent in parts, and forwarded as they came: header and payload have one each. A frame of
      the door has one for both.
    - The buffer. Packets, of up to 4 MiB, are received into one reused buffer and handed out as views of it
      (``packets.FrameBuffer``). Frames of the door are many and small, come as ``bytes`` from an event loop, and
      outlive the buffer (``schemas/door/frames.DoorFrames``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

AnyKind = TypeVar("AnyKind", bound=IntEnum)


class BadFrame(ValueError):
    """The bytes are no frame of a version that is spoken here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing(Generic[AnyKind]):
    """What headers of one framing must be."""

    magic: bytes
    versions: range
    """Versions of the header's layout that are read here."""
    kinds: Mapping[int, AnyKind]
    limits: Mapping[AnyKind, int]
    """Largest payload, in bytes, by kind."""

    def check_magic(self, begun: bytes) -> None:
        """Raise BadFrame unless a frame may begin with these bytes, two or fewer."""
        if not self.magic.startswith(begun):
            raise BadFrame(f"a frame begins with {begun!r}, not {self.magic!r}")

    def kind_of(self, version: int, kind: int, length: int, heard: Collection[AnyKind] | None = None) -> AnyKind:
        """Return the kind of a frame; raises BadFrame for its version, its kind, or a payload over the kind's limit.

        ``heard`` are the kinds that are taken here; None: all.
        """
        if version not in self.versions:
            raise BadFrame(f"framing version {version}; {_versions(self.versions)} spoken here")
        known = self.kinds.get(kind)
        if known is None or (heard is not None and known not in heard):
            raise BadFrame(f"a frame of kind {kind if known is None else known.name} is not taken here")
        if length > self.limits[known]:
            raise BadFrame(f"a {known.name} frame of {length} bytes; at most {self.limits[known]} are taken")
        return known


def _versions(versions: range) -> str:
    return f"{versions[0]} is" if len(versions) == 1 else f"{versions[0]} to {versions[-1]} are"


def check_cluster(peer: str, said: str, own: str, *, needed: bool = False) -> None:
    """Raise BadFrame if a peer's HELLO names another cluster.

    Either side may not know its own (empty), unless it is ``needed``.
    """
    if said != own and (needed or (said and own)):
        raise BadFrame(f"peer {peer!r} is of cluster {said!r}, not {own!r}")


def agreed_version(minimum: int, maximum: int, spoken: range) -> int:
    """Return the version to speak with a peer that speaks ``minimum`` to ``maximum``; BadFrame if there is none.

    >>> agreed_version(1, 9, range(1, 4))
    3
    """
    version = min(spoken[-1], maximum)
    if version < max(spoken[0], minimum):
        raise BadFrame(f"the peer speaks framing {minimum} to {maximum}, this side {spoken[0]} to {spoken[-1]}")
    return version
