"""The core's surroundings: RocksDB, threads, clocks, the process. Everything that may block or fail by itself is here.

``leader_loop`` runs a leader on a thread, ``claiming`` makes that leader, ``read_index`` answers readers. ``follower``
feeds replicas from Kafka. ``database`` leads and follows for a service in one process. ``rocks`` is the store. Below:
``kafka`` and ``web``. Begin with ``database.py``.
"""
