"""Folding: the merges of one row within one batch become a single Merge.

Many requests of a batch change the same counter. One Merge with the combined operand leaves the same row, and each
replica and each reader of the log handles one operation instead of many (decision 0011). That is sound because

    - operators are associative: ``combine`` of the operands does what they do one after the other;
    - between two folded merges of a row nothing else touches that row: a Put or Delete of the row ends the folding;
    - operations on other rows neither see nor change the row, and execution sees each single step through the overlay.

The folded Merge stands where the first one stood, keeps its ``prev`` and takes over the last one's ``next``.
"""

from __future__ import annotations

from collections.abc import Iterable

from replicated_db.core.tables.column_families import Families
from schemas.records.log import Checkpoint, Delete, Merge, Operation, Put


class BatchOperations:
    """The operations of one batch, in order, with merges folded."""

    __slots__ = ("_merges", "_operators", "operations")

    def __init__(self, families: Families) -> None:
        self.operations: list[Operation] = []
        self._operators = families.operators
        self._merges: dict[tuple[str, bytes], int] = {}

    def extend(self, operations: Iterable[Put | Delete | Merge]) -> None:
        """Append a request's operations, each of them executed on the state that the earlier ones leave."""
        merges = self._merges
        for operation in operations:
            if type(operation) is Merge:
                self._merge(operation)
                continue
            if merges:
                merges.pop((operation.cf, operation.key), None)
            self.operations.append(operation)

    def begin_with(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint before everything else. Raises ValueError after the first merge, whose place is recorded."""
        if self._merges:
            raise ValueError("a checkpoint after the first merge of its batch")
        self.operations.insert(0, checkpoint)

    def _merge(self, merge: Merge) -> None:
        row = (merge.cf, merge.key)
        number = self._merges.get(row)
        earlier = None if number is None else self.operations[number]
        if number is None or not isinstance(earlier, Merge) or earlier.operator != merge.operator:
            self._merges[row] = len(self.operations)
            self.operations.append(merge)
            return
        self.operations[number] = Merge(
            cf=merge.cf, key=merge.key, operator=merge.operator,
            operand=self._operators[merge.operator].combine(earlier.operand, merge.operand),
            prev=earlier.prev, next=merge.next,
        )  # fmt: skip
