"""The SDK in asyncio: many requests at once, files that are awaited, a listing by ``async for``.

python examples/with_asyncio.py [BROKERS]
"""

from __future__ import annotations

import asyncio
import sys

from stratolog import AsyncClient, Exists, StratologError

VOLUME, BUCKET = "examples", "tasks"


async def write(client: AsyncClient, number: int) -> None:
    """Write one small key."""
    async with client.open(f"/{VOLUME}/{BUCKET}/task-{number}", "wb") as file:
        await file.write(b"x" * number)


async def run(brokers: str) -> None:
    """Write keys at the same time, list them, and add up their sizes."""
    async with AsyncClient(brokers) as client:
        for create in (client.create_volume(VOLUME), client.create_bucket(VOLUME, BUCKET)):
            try:
                await create
            except Exists as error:
                print(f"already there: {error.status}")
        await asyncio.gather(*(write(client, number) for number in range(1, 11)))
        sizes = [found.size async for found in client.list_keys(VOLUME, BUCKET, prefix="task-")]
        print(f"{len(sizes)} keys of {sum(sizes)} bytes")


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Run the coroutine."""
    asyncio.run(run(brokers))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except StratologError as failure:
        sys.exit(f"error: {failure}")
