"""What Faust's watchdog needs to know is noted, and nothing of each record."""

from __future__ import annotations

import time
from typing import Any

from faust.types import TP

from replicated_db.shell.kafka.quiet_monitor import QuietMonitor


def test_only_the_time_of_the_last_record_of_each_partition_is_kept() -> None:
    monitor = QuietMonitor()
    tp, other = TP("log", 0), TP("log", 1)
    record: Any = object()
    before = time.monotonic()
    monitor.on_message_in(tp, 5, record)
    assert dict(monitor.stream_inbound_time) == {}
    monitor.on_stream_event_in(tp, 5, record, record)
    noted = monitor.stream_inbound_time[tp]
    assert before <= noted <= time.monotonic()
    monitor.on_stream_event_in(other, 6, record, record)
    monitor.on_stream_event_out(tp, 5, record, record)
    monitor.on_message_out(tp, 5, record)
    assert monitor.stream_inbound_time[tp] == noted
    assert set(monitor.stream_inbound_time) == {tp, other}
    assert (monitor.messages_received_total, monitor.events_total, monitor.messages_active) == (0, 0, 0)
