"""The contract between all parts of Stratolog: what is on the wire, on the log and in the tables.

What belongs here: the Avro schemas in all their versions (``avsc/``); the records as frozen dataclasses
(``records``); the one codec between records and bytes (``codecs``); the shard function; the names of topics, column
families and result codes. One module is here because all packages use it: the step through a table of states
(``transitions``). The package reads the schema files at import. Apart from that it has no I/O, no clock and no
randomness.
Everything imports this package; it imports none of the others.
"""
