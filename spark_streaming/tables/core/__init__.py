"""From records of one shard's log to rows of tables. Pure; begin with ``shard_fold.py``."""
