"""A node's answers over HTTP: reads at three consistency levels, its state, its metrics, the fleet.

``consistency`` waits for the position that a read needs, ``queries`` and ``views`` make the answers. Begin with
``http_api.py``.
"""
