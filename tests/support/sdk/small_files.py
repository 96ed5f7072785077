"""Small files by several threads, as many as it takes until blocks are reserved for them (decision 0085)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from producers import Client
from tests.support.sdk.written import fresh_bytes

THREADS = 8
SIZE_BYTES = 20 * 1024
"""More than is kept in the tables."""
LIMIT_S = 60.0
RESERVED_KEYS = 20


def write_until_reserved(client: Client, folder: str) -> dict[str, bytes]:
    """Write files below ``/volume/bucket/…`` until RESERVED_KEYS were made by one request each; return all by path.

    Fails after LIMIT_S without so many.
    """
    written: dict[str, bytes] = {}
    reserved, until_s = threading.Semaphore(0), time.monotonic() + LIMIT_S
    done = threading.Event()

    def write(thread: int) -> None:
        number = 0
        while not done.is_set() and time.monotonic() < until_s:
            path, data = f"{folder}/{thread}-{number}", fresh_bytes(SIZE_BYTES + number)
            with client.open(path, "wb") as file:
                file.write(data)
            written[path] = data
            if file.requests == 1:
                reserved.release()
            number += 1

    with ThreadPoolExecutor(THREADS) as threads:
        writing = [threads.submit(write, thread) for thread in range(THREADS)]
        found = sum(reserved.acquire(timeout=max(0.0, until_s - time.monotonic())) for _ in range(RESERVED_KEYS))
        done.set()
        for one in writing:
            one.result()
    assert found == RESERVED_KEYS, f"{found} of {len(written)} files were made by one request each"
    return written


def check_written(client: Client, written: dict[str, bytes]) -> None:
    """Read files back; no two of them have a block in common."""
    blocks: list[tuple[int, int]] = []
    for path, data in written.items():
        with client.open(path) as file:
            assert file.read() == data, path
            assert file.info is not None
            blocks += [(block.container_id, block.local_id) for block in file.info.blocks]
    assert len(set(blocks)) == len(blocks) >= len(written)
