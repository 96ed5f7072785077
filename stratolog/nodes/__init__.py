"""The nodes of a cluster, asked over HTTP: what they say of themselves, and what follows from it.

``answers`` asks, ``readiness`` says whether a cluster can be used, ``core`` knows who leads. Begin with ``answers.py``.
"""
