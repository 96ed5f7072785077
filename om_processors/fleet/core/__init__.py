"""The fleet's picture, and what is to be done about it: placement and the making of pipelines. Pure."""
