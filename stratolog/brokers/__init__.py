"""Brokers that know who asks: their listeners, the rights of their principals, their users and passwords.

Begin at ``secure_listeners.py`` (what a broker is told), ``access_rules.py`` (the ACLs, made from
``schemas/kafka/access.py``) and ``kafka_users.py`` (users who log in with a password).
"""
