"""Whether a cluster can be used: every shard has a leader, and blocks can be allocated."""

from __future__ import annotations

from stratolog.configuration.settings import Settings
from stratolog.nodes.answers import node_answer, node_statuses
from stratolog.nodes.core import leaders


def is_led(settings: Settings) -> bool:
    """Say whether every node answers and every shard has exactly one leader, which all nodes know."""
    statuses = node_statuses(settings)
    return all(leaders.is_led(statuses, shard) for shard in range(settings.shards))


def has_usable_pipeline(settings: Settings) -> bool:
    """Say whether every node sees a pipeline that takes blocks."""
    views = [node_answer(node.address, "/v1/pipelines?consistency=stale") for node in settings.nodes]
    return all(view is not None and any(one["usable"] for one in view["pipelines"]) for view in views)
