"""Turns a pipeline's requests into operations and answers, and says who claims after how much silence. Pure."""
