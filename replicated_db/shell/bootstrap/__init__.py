"""Bootstrap on the disk and over HTTP: a replica gets a peer's checkpoint (design, section 7).

The serving side is ``transfer_desk`` (checkpoints that are held for askers) and ``transfer_pages`` (its HTTP paths).
The installing side is ``bootstrap`` (the run, around the pure machine), with ``peer_calls`` (HTTP), ``candidate`` (the
folder), ``candidate_check`` and ``install``. ``content_digests`` addresses files by their content. Begin with
``bootstrap.py``.
"""
