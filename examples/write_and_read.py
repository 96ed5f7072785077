"""Write a key as a file, read it back, and look at its row. Start a stack first: ``stratolog up``.

python examples/write_and_read.py [BROKERS]
"""

from __future__ import annotations

import sys

from stratolog import Client, Exists, StratologError

VOLUME, BUCKET, KEY = "examples", "files", "greetings/hello.txt"


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Write, read, show, delete."""
    with Client(brokers) as client:
        try:
            client.create_volume(VOLUME)
            client.create_bucket(VOLUME, BUCKET)
        except Exists as error:
            print(f"already there: {error}")
        path = f"/{VOLUME}/{BUCKET}/{KEY}"
        with client.open(path, "wb", metadata={"language": "English"}) as output:
            output.write(b"hello, ")
            output.hsync()  # these bytes survive any one failure from here on
            output.write(b"world\n")
        # The key is visible once the ``with`` block has ended; if the block raises, the key stays what it was.
        with client.open(path) as file:
            print(file.read().decode(), end="")
            file.seek(7)
            print(file.read(5).decode())
        view = client.key_info(VOLUME, BUCKET, KEY)
        print(f"{view.info.size} bytes in {len(view.info.blocks)} block(s), {view.info.metadata['language']}")
        client.delete_key(VOLUME, BUCKET, KEY)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except StratologError as failure:
        sys.exit(f"error: {failure}")
