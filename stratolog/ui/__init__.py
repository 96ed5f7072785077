"""The dashboard in the browser (decision 0052, docs/dashboard.md).

``core`` folds what was observed into what is shown, ``rendering`` makes HTML of that, ``watching`` reads Kafka and asks
nodes while somebody looks, ``serving`` is the HTTP server. Begin with ``core/board.py``.
"""
