"""Snapshots of buckets on this node: which checkpoints are open, what they take on the disk, how their keys are named.

``checkpoints`` are the directories of one node; ``open_snapshots`` keeps some of them open for reading. Begin there.
``core/snapshot_paths`` says which snapshot the name of a key means.
"""
