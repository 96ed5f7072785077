"""Lines of a log that a flood may not fill."""

from __future__ import annotations

from om_processors.intake.core.seldom_note import NOTE_MS, SeldomNote


def test_one_line_is_written_in_a_while_and_the_others_are_counted():
    written: list[str] = []
    notes = SeldomNote(written.append)
    for now_ms in (5, 6, 4 + NOTE_MS):
        notes.note(f"at {now_ms}", now_ms)
    assert written == ["at 5"]
    notes.note("later", 5 + NOTE_MS)
    notes.note("once more", 5 + 2 * NOTE_MS)
    assert written == ["at 5", "later (and 2 more before)", "once more"]
