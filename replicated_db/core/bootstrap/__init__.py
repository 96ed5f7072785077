"""Bootstrap, the pure part: a replica that installs a peer's checkpoint (design, section 7).

``bootstrap_machine`` decides what the installing side does next. ``listing`` has the two records of the conversation
and judges foreign ones, ``file_plan`` says which files to list, to fetch and to link. ``peer_choice`` orders the peers.
``install_steps`` is the table of what is found on the disk and what is done then. ``pace`` has the throttle and the
words of progress. Begin with ``bootstrap_machine.py``.
"""
