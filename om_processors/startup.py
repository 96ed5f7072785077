"""Checks before an Object Manager node starts: the broker's and the topics' settings, and the number of shards.

``replicated_db.shell.startup`` has the checks that every log needs.
"""

from __future__ import annotations

from collections.abc import Callable

from om_processors.config import NodeConfig
from replicated_db.shell import startup
from replicated_db.shell.startup import MIN_SESSION_TIMEOUT, Topics, WrongSetting
from schemas.kafka.connection import Brokers
from schemas.settings.table import AUTH_NONE
from schemas.topics import OM_AUDIT, OM_LOG, OM_REJECTED, OM_REQUESTS, OM_RESPONSES, REQUEST_SETTINGS, UNCOMPRESSED

OF_A_GROWN_LOG = "If the settings are right, restore a backup into other brokers (docs/backup.md)"
"""The way back for a log that has more partitions than the cluster has shards."""


def check_topics(bootstrap_servers: Brokers, shards: int) -> Topics:
    """Check the broker's and the topics' settings.

    Raises WrongSetting naming the setting, LogUnavailable if the brokers do not answer.
    """
    others = [OM_REQUESTS, OM_RESPONSES, OM_AUDIT, OM_REJECTED]
    wanted = {OM_REQUESTS: REQUEST_SETTINGS, OM_AUDIT: UNCOMPRESSED}
    found = startup.check_topics(bootstrap_servers, OM_LOG, others, wanted)
    for name in (OM_REQUESTS, OM_LOG):
        number = found.partitions[name]
        # More partitions of requests are no shards, and nobody sends there (``leadership_machine``).
        if number < shards or (number > shards and name == OM_LOG):
            way_back = "" if number < shards else f": brokers take none away again. {OF_A_GROWN_LOG}"
            raise WrongSetting(f"topic {name}: {number} partitions, but the settings say {shards} shards{way_back}")
    return found


def tell_auth(config: NodeConfig, note: Callable[[str], None]) -> None:
    """Say whom the node believes."""
    if config.auth == AUTH_NONE:
        note(f"auth = none: whoever reaches {config.address}, or the brokers, may do everything under any name")
    else:
        note("auth = signed: requests and reads are signed by users, and rights are judged")


def allowed_session_timeout_ms(config: NodeConfig, topics: Topics, note: Callable[[str], None]) -> int:
    """Return the session time-out of the leaders' group: the setting, or the brokers' minimum if that is longer.

    A broker refuses a member that asks for less. It would be refused again and again, and its shards would have no
    leader.
    """
    allowed_ms = topics.min_session_timeout_ms
    if config.session_timeout_ms >= allowed_ms:
        return config.session_timeout_ms
    note(
        f"session_timeout_ms is {allowed_ms}, not {config.session_timeout_ms}: the brokers allow no shorter one "
        f"({MIN_SESSION_TIMEOUT}), "
        "so a shard whose leader dies waits as long for another"
    )
    return allowed_ms
