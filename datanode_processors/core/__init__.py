"""What the state machines of all rooms share. Pure.

A machine has named states and a table of what may happen in each, and returns instructions; threads, files and sockets
are outside it.
"""
