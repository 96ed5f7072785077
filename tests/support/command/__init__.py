"""The ``stratolog`` command as a process of its own, without the second that it takes to import it each time."""
