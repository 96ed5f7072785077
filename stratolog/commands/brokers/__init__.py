"""``stratolog admin kafka-user``: users who log in to the brokers."""
