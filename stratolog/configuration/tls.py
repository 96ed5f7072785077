"""TLS of this process, from the settings ``tls_ca_file``, ``tls_certificate_file`` and ``tls_key_file``.

``key_encryption_file`` opens the key if it is encrypted.
"""

from __future__ import annotations

import logging
import stat
from functools import cache
from pathlib import Path

from schemas.security.tls import ProcessTls, TlsFiles, TlsUnusable
from stratolog.errors import UsageError

log = logging.getLogger("stratolog.tls")


def tls_files_of(
    ca: Path | None, certificate: Path | None, key: Path | None, key_encryption: Path | None = None
) -> TlsFiles | None:  # fmt: skip
    """Return the files, None if no authority is named; raises UsageError if they do not go together."""
    if ca is None:
        for name, path in (("tls_certificate_file", certificate), ("tls_key_file", key)):
            if path is not None:
                raise UsageError(f"setting '{name}' is given, and 'tls_ca_file', which says whom to trust, is not")
        return None
    if key is not None and certificate is None:
        raise UsageError("setting 'tls_key_file' is given, and 'tls_certificate_file' is not")
    return TlsFiles(ca=ca, certificate=certificate, key=key, key_encryption=key_encryption)


@cache
def process_tls(files: TlsFiles | None) -> ProcessTls | None:
    """Return TLS with these files; raises UsageError if they cannot be used, or a key may be read by others."""
    if files is None:
        return None
    key = files.key or files.certificate
    try:
        if key is not None and (mode := stat.S_IMODE(key.stat().st_mode)) & 0o077:
            raise UsageError(f"{key} holds a key and may be read by others (mode {mode:04o}): 'chmod 600 {key}'")
        return ProcessTls(files, log.warning)
    except OSError as error:
        raise UsageError(f"{key} cannot be read: {error.strerror}") from error
    except TlsUnusable as error:
        raise UsageError(f"settings 'tls_...': {error}") from error
