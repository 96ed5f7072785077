"""What ``stratolog up`` tells the running audit."""

from __future__ import annotations

import pytest

from stratolog.local.spawning import AUDIT_TASKS, ONE_TASK_SHARDS, audit_tasks


@pytest.mark.parametrize(
    ("shards", "tasks"), [(1, 1), (ONE_TASK_SHARDS, 1), (ONE_TASK_SHARDS + 1, AUDIT_TASKS), (64, AUDIT_TASKS)]
)
def test_few_shards_are_audited_by_one_task(shards: int, tasks: int):
    """The number must depend on what never changes: with another one the audit reads the logs anew."""
    assert audit_tasks(shards) == tasks
