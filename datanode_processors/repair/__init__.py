"""What makes bytes right again: blocks of pipelines (``verifier``), copies of containers (``copy_upkeep``), all of them (``scrubber``).

``core`` decides (pure): for pipelines' blocks ``verify_queue`` and ``repairs``, for copies ``upkeep_plan`` what is next, ``copy_look`` and
``copy_repair`` how that goes. ``committed_files``, ``copy_work`` and ``copy_actions`` carry it out; ``cell_fetch`` and ``transfer`` fetch from
peers. Begin with ``verifier.py``.
"""
