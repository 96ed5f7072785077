"""docs/reference/access.md: who may do what on the brokers of a secure cluster."""

from __future__ import annotations

from build_tools.reference.markdown import code, page, prose, table
from schemas.kafka.access import ACCESS, NAME, KafkaPrincipal, principal_of

WORDS = {
    KafkaPrincipal.OM: "Nodes of the Object Manager",
    KafkaPrincipal.DATANODE: "Datanodes",
    KafkaPrincipal.AUDIT: "The audit",
    KafkaPrincipal.USER: "Users",
}


def access_page() -> str:
    """Return the page."""
    intro = prose(
        "The brokers of a secure cluster (`stratolog up --secure`) refuse whatever is not in these tables. Their ACLs are "
        "made from the same table as this page (`schemas/kafka/access.py`), when a process is started and when a user is "
        "made. Brokers, and the operator `User:admin:operator` as whom people's commands ask, may do everything. "
        "[Security](../security.md) says who proves himself by what."
    )
    parts = []
    for kind, rights in ACCESS.items():
        rows = [
            (
                right.resource,
                code(right.name + ("*" if right.is_prefix else "")),
                ", ".join(right.operations),
                right.why,
            )
            for right in rights
        ]
        parts.append([f"## {WORDS[kind]}", "", *prose(f"Principal: {code(principal_of(kind, NAME))}.")])
        parts.append(table(("resource", "name", "may", "why"), rows))
    return page("Who may do what on the brokers", intro, *parts)
