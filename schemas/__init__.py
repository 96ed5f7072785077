"""The contract between all parts of Stratolog: what is on the wire, on the log and in the tables.

What belongs here: the Avro schemas (``avsc/``) and their history, the records they describe as frozen
dataclasses (``records``), the one codec between the two (``codecs``), the shard function,
the names of topics, column families and result codes. No I/O beyond reading the schema files at import, no
clock, no randomness. Everything imports this package; it imports none of the others.
"""
