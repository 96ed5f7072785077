"""What snapshots, bootstraps and large databases cost, on a real stack (``python -m benchmarks.bootstrap``).

Begin with ``__main__.py``. ``figures`` is pure: from events and samples to figures. ``running`` has the stack, its load
and what is seen of it, ``recorded_node`` the node that installs. The parts: ``transfer`` (and the circle) and ``keys``
(snapshot, replay, restart).
"""
