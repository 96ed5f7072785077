"""The HTTP server of every process: bounded, in TLS or in clear. Begin with ``http_server``, then ``bounded_server``.

``listening`` makes the sockets, ``threaded_server`` runs a server beside a process that has no event loop,
``http_guard`` says who may ask and change something, ``metrics`` is the page for Prometheus.
"""
