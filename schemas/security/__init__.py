"""Who a process is, by its certificate, and how two of them speak TLS (decision 0073).

Begin at ``certificates.py`` (names and roles) and ``tls.py`` (contexts from files).
"""
