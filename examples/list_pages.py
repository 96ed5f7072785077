"""Make keys without waiting for each, list them page by page, and show how many keys a bucket counts.

python examples/list_pages.py [BROKERS]
"""

from __future__ import annotations

import sys
from contextlib import suppress

from stratolog import Client, CreateKey, Exists, KeyInfo, KeySession, StratologError

VOLUME, BUCKET = "examples", "pages"
KEYS = 45
PAGE = 20


def make_keys(client: Client) -> None:
    """Make empty keys: all requests are on their way before the first answer is waited for."""
    with suppress(Exists):
        client.create_volume(VOLUME)
    with suppress(Exists):
        client.create_bucket(VOLUME, BUCKET)
    names = [f"entry-{number:03d}" for number in range(KEYS)]
    futures = [client.submit(CreateKey(volume=VOLUME, bucket=BUCKET, key=name, size=0)) for name in names]
    for name, future in zip(names, futures, strict=True):
        session = future.result().result
        if isinstance(session, KeySession):
            client.commit_key(VOLUME, BUCKET, name, session.session_id, size=0, blocks=[])


def page(client: Client, after: str) -> list[KeyInfo]:
    """Return one page: the keys that follow the last one of the page before."""
    return list(client.list_keys(VOLUME, BUCKET, prefix="entry-", start_after=after, limit=PAGE))


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Make keys, and list them twice."""
    with Client(brokers) as client:
        make_keys(client)
        after = ""
        while keys := page(client, after):
            print(f"{keys[0].key} to {keys[-1].key}: {len(keys)}")
            after = keys[-1].key
        # Without a limit the iterator reads page after page by itself, each when it is needed.
        print(f"{sum(1 for _ in client.list_keys(VOLUME, BUCKET))} keys in all")
        for bucket in client.list_buckets(VOLUME):
            if bucket.bucket == BUCKET:
                print(f"/{bucket.volume}/{bucket.bucket}: {bucket.usage['used_namespace']} keys are counted")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except StratologError as failure:
        sys.exit(f"error: {failure}")
