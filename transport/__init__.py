"""What carries bytes between processes, for all packages: deadlines, connections, servers, tails of topics.

``schemas`` says what the bytes are, and has no I/O. This package moves them, and knows no rows and no blocks. Begin
with ``waiting`` (how long a wait may last, when to try again). ``datanodes`` is the client of datanodes. ``topics``
reads the end of a topic, and tells which verdict of the audit is the latest. ``web`` is the HTTP server of every
process. ``files`` puts files onto the disk, so that they survive a loss of power.
It imports ``schemas`` alone; every other package may import it. Spark's audit may, too: nothing here judges the log
(decision 0089).
"""
