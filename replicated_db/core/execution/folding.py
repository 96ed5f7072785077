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

    __slots__ = ("_folds", "_operations", "_operators")

    def __init__(self, families: Families) -> None:
        self._operations: list[Operation] = []
        self._operators = families.operators
        self._folds: dict[tuple[str, bytes], _Fold] = {}
        """By row, the merges that a further merge of the row may be folded into."""

    @property
    def operations(self) -> list[Operation]:
        """The operations so far. Do not keep the list: it changes with the batch."""
        for fold in self._folds.values():
            self._settle(fold)
        return self._operations

    def extend(self, operations: Iterable[Put | Delete | Merge]) -> None:
        """Append a request's operations, each of them executed on the state that the earlier ones leave."""
        folds, made = self._folds, self._operations
        for operation in operations:
            row = (operation.cf, operation.key)
            if row in folds:
                fold = folds[row]
                if type(operation) is Merge and operation.operator == fold.first.operator:
                    fold.operands.append(operation.operand)
                    fold.last = operation
                    continue
                self._settle(fold)
                del folds[row]
            if type(operation) is Merge:
                folds[row] = _Fold(len(made), operation)
            made.append(operation)

    def begin_with(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint before everything else. Raises ValueError after the first merge, whose place is recorded."""
        if self._folds:
            raise ValueError("a checkpoint after the first merge of its batch")
        self._operations.insert(0, checkpoint)

    def _settle(self, fold: _Fold) -> None:
        """Put one Merge in the place of those that were folded."""
        first, last = fold.first, fold.last
        if last is not first:
            self._operations[fold.number] = Merge(
                cf=first.cf, key=first.key, operator=first.operator,
                operand=self._operators[first.operator].combine(*fold.operands),
                prev=first.prev, next=last.next,
            )  # fmt: skip


class _Fold:
    """Merges of one row by one operator, and where the first one stands in the batch."""

    __slots__ = ("first", "last", "number", "operands")

    def __init__(self, number: int, first: Merge) -> None:
        self.number = number
        self.first = self.last = first
        self.operands = [first.operand]
