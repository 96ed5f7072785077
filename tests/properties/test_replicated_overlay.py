"""Overlay and transaction against a dict that is copied at every layer."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from tests.properties.examples import examples
from tests.support.replicated.kit import FAMILIES

KEYS = st.binary(max_size=2)
VALUES = st.binary(max_size=2)
CFS = st.sampled_from(["things", "counters"])
Rows = dict[tuple[str, bytes], bytes]


class OverlayMachine(RuleBasedStateMachine):
    """``rows`` is what must be seen; ``layers`` what each layer in flight changed, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(FAMILIES.names)
        self.overlay = Overlay(self.store)
        self.rows: Rows = {}
        self.layers: list[tuple[int, dict[tuple[str, bytes], bytes | None]]] = []
        self.number = 0
        self.transaction: Transaction | None = None
        self.changed: dict[tuple[str, bytes], bytes | None] = {}

    def seen(self) -> Rows:
        rows: Rows = dict(self.rows)
        for key, value in self.changed.items():
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        return rows

    @rule()
    @precondition(lambda self: self.transaction is None)
    def open_layer(self):
        self.number += 1
        self.overlay.open_layer(self.number)
        self.layers.append((self.number, {}))

    @rule()
    @precondition(lambda self: self.transaction is None and self.layers)
    def begin(self):
        self.transaction = Transaction(FAMILIES, self.overlay, 1)

    @rule(cf=CFS, key=KEYS, value=VALUES)
    @precondition(lambda self: self.transaction is not None)
    def put(self, cf: str, key: bytes, value: bytes):
        assert self.transaction
        self.transaction.put(cf, key, value)
        self.changed[cf, key] = value

    @rule(cf=CFS, key=KEYS)
    @precondition(lambda self: self.transaction is not None)
    def delete(self, cf: str, key: bytes):
        assert self.transaction
        self.transaction.delete(cf, key)
        self.changed[cf, key] = None

    @rule(cf=CFS, key=KEYS, operand=VALUES)
    @precondition(lambda self: self.transaction is not None)
    def merge(self, cf: str, key: bytes, operand: bytes):
        assert self.transaction
        old = self.seen().get((cf, key))
        self.transaction.merge(cf, key, "max_bytes", operand)
        self.changed[cf, key] = operand if old is None else max(old, operand)

    @rule(keep=st.booleans())
    @precondition(lambda self: self.transaction is not None)
    def end(self, keep: bool):
        assert self.transaction
        if keep:
            self.rows = self.seen()
            self.transaction.commit()
            self.layers[-1][1].update(self.changed)
        self.transaction, self.changed = None, {}

    @rule()
    @precondition(lambda self: self.transaction is None and len(self.layers) > 1)
    def apply_oldest(self):
        number, changed = self.layers.pop(0)
        self.store.write([(cf, key, value) for (cf, key), value in changed.items()])
        self.overlay.drop_layer(number)

    @rule(cf=CFS, start=KEYS, stop=st.none() | KEYS)
    def iterate(self, cf: str, start: bytes, stop: bytes | None):
        view: Any = self.transaction or self.overlay
        expected = sorted(
            (key, value)
            for (family, key), value in self.seen().items()
            if family == cf and key >= start and (stop is None or key < stop)
        )
        assert list(view.iterate(cf, start, stop)) == expected

    @rule(cf=CFS, key=KEYS)
    def get(self, cf: str, key: bytes):
        view: Any = self.transaction or self.overlay
        assert view.get(cf, key) == self.seen().get((cf, key))

    @invariant()
    def holds_no_more_than_what_is_in_flight(self):
        assert len(self.overlay) == len({row for _, changed in self.layers for row in changed})


OverlayMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestOverlay = OverlayMachine.TestCase
