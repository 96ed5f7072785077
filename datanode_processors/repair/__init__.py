"""Mending bytes: blocks of pipelines (``verifier``), copies (``copy_upkeep``), and finding damage (``scrubber``).

``core`` decides (pure). For pipelines' blocks: ``verify_queue`` and ``repairs``. For copies: ``upkeep_plan`` says what
is next, ``copy_look`` and ``copy_repair`` how that is done. ``committed_files``, ``copy_work`` and ``copy_actions``
carry it out; ``cell_fetch`` and ``transfer`` fetch from peers. Begin with ``verifier.py``.
"""
