"""Checks before an Object Manager node takes part: the broker's and the topics' settings, and the number of shards.

What every log has in common is checked in ``replicated_db.startup``.
"""

from __future__ import annotations

from replicated_db import startup
from replicated_db.startup import Topics, WrongSetting
from schemas.topics import OM_AUDIT, OM_LOG, OM_REJECTED, OM_REQUESTS, OM_RESPONSES, REQUEST_SETTINGS, UNCOMPRESSED


def check_topics(bootstrap_servers: str, shards: int) -> Topics:
    """Check the broker's and the topics' settings.

    Raises WrongSetting naming the setting, LogUnavailable if the brokers do not answer.
    """
    others = [OM_REQUESTS, OM_RESPONSES, OM_AUDIT, OM_REJECTED]
    wanted = {OM_REQUESTS: REQUEST_SETTINGS, OM_AUDIT: UNCOMPRESSED}
    found = startup.check_topics(bootstrap_servers, OM_LOG, others, wanted)
    for name in (OM_REQUESTS, OM_LOG):
        if found.partitions[name] != shards:
            raise WrongSetting(
                f"topic {name}: {found.partitions[name]} partitions, but the settings say {shards} shards"
            )
    return found
