"""A datanode with explicit settings: ``python datanode_process.py JSON`` runs the real one, its config given as one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datanode_processors import node
from datanode_processors.config import DatanodeConfig
from schemas.security.tls import ProcessTls, TlsFiles
from tests.support.local.secret import SECRET

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    files = options.pop("tls", None)
    tls = None if files is None else ProcessTls(TlsFiles(**{what: Path(file) for what, file in files.items()}))
    node.run(DatanodeConfig(**{**options, "data_dir": Path(options["data_dir"]), "secret": SECRET, "tls": tls}))
