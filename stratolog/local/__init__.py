"""The local stack: jars, Kafka brokers, topics, processes, and the file that remembers what runs.

What belongs here: everything that starts, finds or stops a real process on this machine. Nothing here knows what the
processes do.
"""
