"""A collector of spans, for the tests of tracing."""
