"""The registry: which pipelines a datanode is a member of, as a file that is replaced atomically and durably."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from schemas.codecs.codec import decode_as, encode
from schemas.records.datanode import OpenPipeline
from transport.files.durable_files import write_durably

REGISTRY = "pipelines.json"
"""The registry's file name in a datanode's folder."""


def read_registry(path: Path) -> list[OpenPipeline]:
    """Return the pipelines of a registry, none if there is no such file.

    Raises ValueError naming the file if it is no registry.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    try:
        return [decode_as(OpenPipeline, base64.b64decode(one["opened"])) for one in json.loads(text)["pipelines"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no registry of pipelines: {error}") from error


def write_registry(path: Path, pipelines: Sequence[OpenPipeline]) -> None:
    """Replace the registry, atomically and durably. Only ``opened`` is read again; the names are for people."""
    listed = [
        {
            "pipeline": one.pipeline, "partition": one.partition,
            "members": [member.datanode for member in one.members],
            "opened": base64.b64encode(encode(one)).decode(),
        }
        for one in pipelines
    ]  # fmt: skip
    write_durably(path, json.dumps({"pipelines": listed}, indent=2), aside=path.with_suffix(".new"))
