"""What a person sets: stratolog.toml, its values and where it is found; the data directory; the cluster's secret.

Begin with ``settings.py`` (the settings) and ``loading.py`` (where their values come from).
"""
