"""The client of datanodes: connections, and the pool of those that are kept (decision 0089).

The SDK, the Object Manager and the datanodes themselves all use it. What may be said when is ``schemas.conversation``;
what a datanode is asked for, which one, and what follows from its silence is the caller's.

Begin with ``connection``; ``kept`` keeps connections between requests; ``dialing`` connects. ``core`` is pure: the one
exception.
"""
