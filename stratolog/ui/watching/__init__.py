"""Reading what a page shows, while somebody looks: topics' tails and nodes' answers. Begin with ``watch.py``."""
