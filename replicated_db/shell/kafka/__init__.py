"""Kafka as a replicated log: reading and appending (``kafka_log``), Faust's consumer (``faust_transport``)."""
