"""From one proposal to the operations of a batch.

``calls`` judges a call and runs it; a ``service`` executes it in a ``transaction``. ``retry``, ``expiry`` and
``answered`` hold what is known of earlier calls, and for how long. ``folding`` gathers the operations of a batch.
Begin with ``service.py``, then ``calls.py``.
"""
