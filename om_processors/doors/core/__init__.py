"""The pure part of the direct door: which connection makes room for a new one (``room``)."""
