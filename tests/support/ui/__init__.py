"""What a dashboard may have observed, for tests of its views."""
