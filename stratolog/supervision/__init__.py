"""What starts the processes of a local stack again that have died: one process beside them, which ``up`` starts.

supervisor   the process: looks once a second, starts what is due, ends with the stack
telling      what it remembers, in a file, and what people are told
core         when a process is due, and what is told of it
"""
