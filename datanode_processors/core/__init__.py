"""What the machines of all rooms share. Pure.

A machine has named states, a table of what may happen in each, and says what is to be done; threads, files and sockets are outside.
"""
