"""The fleet's picture, and the decisions about it: placement and the making of pipelines. Pure."""
