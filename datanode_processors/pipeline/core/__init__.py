"""Requests of a pipeline to operations and answers; who claims after how much silence. Pure."""
