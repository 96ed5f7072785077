"""States of datanodes and pipelines in the Object Manager's tables, as Ozone names them."""

from __future__ import annotations

IN_SERVICE = "IN_SERVICE"
"""Takes blocks; that of a datanode without a row."""
DECOMMISSIONING = "DECOMMISSIONING"
"""To be taken away for good: its pipelines close, its containers are copied to others."""
DECOMMISSIONED = "DECOMMISSIONED"
"""All that it holds is elsewhere: it may be switched off."""
ENTERING_MAINTENANCE = "ENTERING_MAINTENANCE"
"""To be away for a while: its pipelines close."""
IN_MAINTENANCE = "IN_MAINTENANCE"
"""May be away: nothing is copied because of it."""

DATANODE_STATES = (IN_SERVICE, DECOMMISSIONING, DECOMMISSIONED, ENTERING_MAINTENANCE, IN_MAINTENANCE)

OPEN = "OPEN"
CLOSED = "CLOSED"
"""States of a pipeline: takes blocks, or only holds them."""
