"""Datanodes: one in memory, stream servers alone, real processes; the checksums and racks that their answers are held against."""
