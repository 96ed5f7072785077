"""Certificates for tests: an authority in a folder, and TLS of whoever it certifies."""

from __future__ import annotations

import time
from pathlib import Path

from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles
from stratolog.security.authority import open_authority


class Certified:
    """An authority, and those that it has certified."""

    def __init__(self, folder: Path, cluster: str = "test") -> None:
        self.folder = folder
        self.authority = open_authority(folder, cluster=cluster, now_s=int(time.time()))

    def files(self, name: str, role: Role, *, now_s: int | None = None, hosts: tuple[str, ...] = ()) -> TlsFiles:
        """Return the files of a holder; with ``now_s`` the certificate is made as of then."""
        holder = PeerIdentity(name=name, role=role)
        issued = self.authority.certify(holder, hosts, now_s=int(time.time()) if now_s is None else now_s)
        return TlsFiles(ca=self.authority.ca_file, certificate=issued.path)

    def tls(self, name: str, role: Role, *, now_s: int | None = None) -> ProcessTls:
        """Return TLS of a holder."""
        return ProcessTls(self.files(name, role, now_s=now_s))
