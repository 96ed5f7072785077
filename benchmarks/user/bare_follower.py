"""A follower without replicas and duties: Faust and its consumer at rest. ``python -m benchmarks.user.bare_follower``.

Arguments: brokers, the log's topic, the reports' topic, a folder, a free port. It fetches both topics as a node does,
and does nothing with the records. What six of these take beside bare brokers is the least that a stack can take that
has six Faust followers, whatever else it does.
"""

from __future__ import annotations

import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import faust
import mode.loop

from replicated_db.shell.follower import make_app, place_group
from replicated_db.shell.process import calm_collector, fatal, when_brokers_answer


def main() -> None:
    """Follow until SIGTERM."""
    brokers, log_topic, audit_topic, folder, port = sys.argv[1:]
    mode.loop.use("uvloop")
    group = f"bare-{uuid.uuid4().hex}"
    place = partial(place_group, brokers, group, log_topic=log_topic, audit_topic=audit_topic)
    when_brokers_answer(partial(place, replicas={}, partitions=1))  # the topics are a moment old
    app = make_app(
        group, bootstrap_servers=brokers, host="127.0.0.1", port=int(port), data_dir=Path(folder), fatal=fatal
    )

    for name in (log_topic, audit_topic):

        @app.agent(app.topic(name, value_serializer="raw", key_serializer="raw"), name=name)
        async def follow(stream: Any) -> None:
            async for _ in stream.events():
                pass

    calm_collector()
    faust.Worker(app, loglevel="warning", redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main()
