"""docs/reference/topics.md: the topics, who writes and reads them, and the settings that they must have."""

from __future__ import annotations

from build_tools.reference.markdown import code, page, prose, table
from schemas import topics as names
from stratolog.configuration.settings import Settings
from stratolog.local.topics import GROWING, UNBOUNDED, TopicPlan

USES: dict[str, tuple[str, str, str]] = {
    names.OM_REQUESTS: ("clients", "the shard's leader", "Request, Requests, PreparedRequest"),
    names.OM_LOG: ("the shard's leader", "replicas, the audit", "records of the log"),
    names.OM_RESPONSES: ("leaders", "clients", "Response, Responses"),
    names.OM_AUDIT: ("replicas", "the audit, leaders", "AuditReport"),
    names.OM_VERDICTS: ("the audit", "leaders, `stratolog audit --follow`, `stratolog alerts`", "Verdict"),
    names.OM_STATS: ("the audit", "`stratolog audit --windows`", "WindowStats"),
    names.OM_REJECTED: ("leaders", "people", "Rejected"),
    names.DN_LOG: ("the pipeline's leader", "members, the audit", "records of the log"),
    names.DN_HEARTBEATS: ("datanodes", "Object Manager nodes", "Heartbeat"),
    names.DN_AUDIT: ("datanodes", "the audit", "AuditReport, BlockReport"),
}
"""Who writes, who reads, and what."""


def topics_page() -> str:
    """Return the page."""
    plan = TopicPlan(
        shards=Settings().shards, response_partitions=Settings().response_partitions, replication_factor=3,
        durability=Settings().durability, datanodes=True,
    ).topics()  # fmt: skip
    intro = prose(
        "`stratolog up` and `stratolog topics ensure` make the topics, or verify them; every node verifies the logs' "
        "settings again at its start. Partitions and copies are those of the default settings with three brokers: "
        "shards and answers have as many as `shards` and `response_partitions` say. This page is made from the code."
    )
    uses = [(code(name), wanted.partitions, *USES[name]) for name, wanted in plan.items()]
    parts = [table(("topic", "partitions", "written by", "read by", "values"), uses)]
    parts.append(
        prose(
            f"{' and '.join(map(code, UNBOUNDED))} are kept until they are trimmed ([how](../trimming.md)). "
            f"{' and '.join(map(code, GROWING))} get more partitions as pipelines are made."
        )
    )
    for name, wanted in plan.items():
        rows = [(code(setting), code(value)) for setting, value in sorted(wanted.settings.items())]
        parts.append([f"## {name}", "", *table(("setting", "value"), rows)])
    return page("Topics", intro, *parts)
