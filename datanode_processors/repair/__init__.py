"""What makes bytes right again: blocks of pipelines (``verifier``), copies of containers (``copy_upkeep``), all of them (``scrubber``).

``repairs``, ``agenda`` and ``away`` are the books that decide (pure); ``cell_fetch`` and ``transfer`` fetch from peers.
Begin with ``verifier.py``.
"""
