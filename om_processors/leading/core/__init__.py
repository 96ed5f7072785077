"""What decides about leadership without doing anything. Pure.

``leadership_machine`` takes events and returns instructions (``leadership_events``) by two tables
(``leadership_states``); it asks ``watchdog`` for reasons and ``lending`` about loans. ``membership`` compares settings
with the log, ``backlog`` bounds the queue.
"""
