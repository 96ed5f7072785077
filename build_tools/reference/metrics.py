"""docs/reference/metrics.md: every metric of every process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from build_tools.reference.markdown import code, page, prose, table
from datanode_processors import status as datanode
from om_processors.serving import node_status as om
from replicated_db.shell.bootstrap import opening_web
from spark_streaming.jobs import audit_metrics as audit
from transport.web.metrics import Metrics

Family = tuple[str, str, str, tuple[str, ...]]
"""Name, kind, meaning and labels."""

PROCESSES: tuple[tuple[str, str, tuple[Family, ...]], ...] = (
    ("Object Manager nodes", "At `/metrics` of a node's HTTP address.", om.FAMILIES),
    ("Datanodes", "At `/metrics` of a datanode's HTTP address.", datanode.FAMILIES),
    (
        "Processes that open their replicas",
        "At the same addresses, until all replicas are open: it may take long if one installs a peer's checkpoint.",
        opening_web.FAMILIES,
    ),
    (
        "The audit",
        (
            "At the address that `metrics` of its health file names (`stratolog up`: a free port of the loopback; "
            "`metrics_host` and `metrics_port` of its configuration choose another). `query` is `audit` or `windows`."
        ),
        audit.FAMILIES,
    ),
)


def foreign() -> tuple[Family, ...]:
    """Return the metrics that Prometheus' library gives of each process."""
    found = []
    for one in text_string_to_metric_families(Metrics(lambda: ()).text()):
        labels = dict.fromkeys(label for sample in one.samples for label in sample.labels)
        # The parser cuts off the ending of a counter's name.
        name = f"{one.name}_total" if one.type == "counter" else one.name
        found.append((name, one.type, one.documentation, tuple(labels)))
    return tuple(found)


FOREIGN = foreign()


def families() -> tuple[Family, ...]:
    """Return all metrics of ours."""
    return tuple(one for _, _, found in PROCESSES for one in found)


def _table(found: Iterable[Family]) -> list[str]:
    rows = [
        (code(name), kind, ", ".join(map(code, labels)) or "none", text) for name, kind, text, labels in sorted(found)
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


def metrics_page() -> str:
    """Return the page."""
    intro = prose(
        "Every process of Stratolog has its figures in Prometheus' text format. Figures are read when somebody asks. A "
        "counter begins at 0 with its process. `observability/` has a configuration of Prometheus, alert rules and "
        "Grafana boards for them ([how to use them](../monitoring.md)). This page is made from the code."
    )
    parts: list[list[str]] = []
    for title, where, found in PROCESSES:
        parts.append([f"## {title}", "", *prose(where), *_table(found)])
    parts.append(["## Every process", "", *prose("By Prometheus' own library."), *_table(FOREIGN)])
    return page("Metrics", intro, *parts)
