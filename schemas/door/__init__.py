"""The direct door: what travels between a client and an Object Manager node on a TCP connection. Pure.

``frames`` are the bytes, ``talk`` is what each side may say when. The node's side is ``om_processors/doors``, the
client's ``producers/direct``. Begin with ``frames``.
"""
