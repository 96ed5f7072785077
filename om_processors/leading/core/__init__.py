"""Decisions about leadership; nothing here acts on them. Pure.

``leadership_machine`` takes events and returns instructions (``leadership_events``) by two tables
(``leadership_states``). It asks ``watchdog`` for reasons not to lead, and ``lending`` about loans. ``membership``
compares the settings with the log; ``preparation`` holds snapshots back.
"""
