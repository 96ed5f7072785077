"""What a person sets: stratolog.toml, its values and where it is found; the data directory; the cluster's secret.

Begin with ``settings.py`` (what there is to set) and ``loading.py`` (where it comes from).
"""
