"""Spans of requests in OpenTelemetry's sense: what a leader and a follower did for a request whose caller traces it.

Begin at ``leader_spans``. Only a process with a tracer imports these modules: they need the extra ``tracing``.
"""
