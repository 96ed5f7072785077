"""How a program handles each kind of error.

python examples/handle_errors.py [BROKERS]
"""

from __future__ import annotations

import sys

from stratolog import Client, Exists, InvalidArgument, NotFound, OutcomeUnknown, RequestFailed, RetryableError


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Meet one error after the other."""
    with Client(brokers, deadline_ms=20_000) as client:
        try:
            client.key_info("no-such-volume", "bucket", "key")
        except NotFound as error:
            print(f"not found: {error.status}")
        for _ in range(2):
            try:
                client.create_volume("examples")
            except Exists as error:
                print(f"exists: {error.status}")
        try:
            client.create_bucket("examples", "Not A Name")
        except RequestFailed as error:
            print(f"the same request fails again: {error.status}")
        try:
            client.create_bucket("examples", "errors", quota_in_bytes=0)
        except InvalidArgument as error:  # a ValueError too; nothing was sent
            print(f"wrong argument: {error.argument}")
        try:
            client.set_volume_property("examples", owner="alice")
        except RetryableError as error:  # nothing was done
            print(f"again, later: {error}")
        except OutcomeUnknown as error:  # it may have been done: look before doing it again
            print(f"owner is now {client.volume_info('examples').info.owner}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
