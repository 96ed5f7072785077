"""The keys of a bucket in which a replica differs: the replicas are asked for the bucket's rows, and compared.

Begin with ``core/row_differences.py``; ``key_naming.py`` runs it beside the audit.
"""
