"""How anybody reaches Kafka's brokers, and who may do what there.

``connection.py`` describes a connection: addresses and security. ``client_settings.py`` makes every client's settings
from it, for librdkafka and for Java; nothing else in the repository writes ``bootstrap.servers``. ``access.py`` is the
table of principals and topics from which the brokers' ACLs are made. ``troubles.py`` says in words what keeps a client
from its brokers.
"""
