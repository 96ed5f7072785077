"""Block tokens on a whole secure stack: what its users notice of them (nothing), and who is refused."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

import httpx
import pytest

from producers import Client
from producers.blocks.datanodes import WORDS
from producers.errors import DatanodeError
from schemas.access.block_tokens import TOKEN_BYTES
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import ReadBlock
from schemas.security.tls import ProcessTls, verify_of
from schemas.sharding import pipeline_of
from stratolog.local import stack
from tests.support.local.secure_stack import SecureStack
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection


def tokens_told(secure: SecureStack) -> list[dict[str, object]]:
    """Return what each datanode says of block tokens."""
    pages = [f"https://{node.host}:{node.http_port}/status" for node in secure.settings.datanodes]
    with httpx.Client(verify=verify_of(ProcessTls(secure.tls("alice")))) as http:
        return [http.get(page).json()["block_tokens"] for page in pages]


def refusals(secure: SecureStack) -> int:
    """Return how many requests the datanodes have refused for want of a token."""
    return sum(int(str(told["refused"])) for told in tokens_told(secure))


def wait_for_keys(secure: SecureStack, keys: list[int]) -> None:
    """Wait until each datanode knows exactly these keys."""
    deadline_s = time.monotonic() + 20
    found: object = None
    while found != [keys] * 3:
        assert time.monotonic() < deadline_s, found
        with suppress(httpx.TransportError):  # one of them has just started
            found = [told["keys"] for told in tokens_told(secure)]
        time.sleep(0.1)


def roll(secure: SecureStack) -> int:
    """Roll the key at once; return the id of the new one, once the datanodes know no other."""
    done = secure.stratolog("admin", "block-tokens", "roll", "--json")
    assert done.returncode == 0, done.stderr
    key = int(json.loads(done.stdout)["key"])
    wait_for_keys(secure, [key])
    return key


def check_block_tokens(secure: SecureStack) -> None:
    """Write and read as a user, roll the key in the middle, ask without a token, start a datanode again."""
    content = os.urandom(5_000_000)
    half = len(content) // 2
    tls = secure.tls("alice")
    with Client(secure.servers, kafka=secure.user("alice"), tls=tls, deadline_ms=60_000) as client:
        client.create_volume("tokens")
        client.create_bucket("tokens", "bucket1")
        with client.open("/tokens/bucket1/before", "wb") as file:
            file.write(content)
        assert all(told["demanded"] and told["keys"] for told in tokens_told(secure))

        # The key is rolled in the middle of a write and of a read: the tokens of both end.
        with client.open("/tokens/bucket1/rolled", "wb") as file, client.open("/tokens/bucket1/before") as reader:
            file.write(content[:half])
            file.flush()
            assert reader.read(half) == content[:half]
            key, before = roll(secure), refusals(secure)
            file.write(content[half:])
            file.hsync()
            assert refusals(secure) > before
            assert reader.read() == content[half:]
        with client.open("/tokens/bucket1/rolled") as file:
            assert file.read() == content
        shown = json.loads(secure.stratolog("admin", "block-tokens", "show", "--json").stdout)
        assert shown["key"] == key

        # Who knows a block, and has a certificate but no token, gets nothing of it.
        block = client.key_info("tokens", "bucket1", "rolled").info.blocks[0]
        (member, *_) = client.streams.directory.pipeline(block.pipeline).members
        greeting = own_hello("client", secure.settings.cluster)
        connection = DatanodeConnection(
            member.address, DatanodeCaller(greeting, ProcessTls(tls), WORDS), datanode=member.datanode
        )
        asked = ReadBlock(
            partition=pipeline_of(block.container_id), container_id=block.container_id, local_id=block.local_id,
            offset=0, length=1, bcs_id=block.bcs_id, committed_only=True,
        )  # fmt: skip
        for tokens, code in ((b"", "BLOCK_TOKEN_MISSING"), (bytes(TOKEN_BYTES), "BLOCK_TOKEN_INVALID")):
            connection.send_request(asked, tokens=tokens)
            with pytest.raises(DatanodeError) as refused:
                connection.receive(10_000)
            assert refused.value.status == code
        connection.close()

        # A datanode that starts again is told the key before it refuses anybody.
        secure.member("dn1").process.kill()
        stack.up(secure.settings, detached=False)
        wait_for_keys(secure, [key])
        with client.open("/tokens/bucket1/after", "wb") as file:
            file.write(content)
        with client.open("/tokens/bucket1/after") as file:
            assert file.read() == content

    log = b"".join(path.read_bytes() for path in secure.settings.data_dir.rglob("*.log"))
    secret = secure.settings.secret().block_token_key(key)
    assert secret not in log
    assert secret.hex().encode() not in log
