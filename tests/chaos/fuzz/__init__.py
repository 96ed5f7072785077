"""Fuzzed frames, records and requests on every port of a secure stack that demands signatures. See ``__main__``."""
