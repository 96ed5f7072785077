"""Logs without the product: written by hand beside a model, and read as somebody outside reads them."""
