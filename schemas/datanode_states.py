"""States of datanodes and pipelines in the Object Manager's tables, as Ozone names them."""

from __future__ import annotations

IN_SERVICE = "IN_SERVICE"
"""It takes blocks. The state of a datanode without a row."""
DECOMMISSIONING = "DECOMMISSIONING"
"""It is to be removed for good: its pipelines close, its containers are copied to others."""
DECOMMISSIONED = "DECOMMISSIONED"
"""All its data is elsewhere: it may be switched off."""
ENTERING_MAINTENANCE = "ENTERING_MAINTENANCE"
"""It is to be absent for a while: its pipelines close."""
IN_MAINTENANCE = "IN_MAINTENANCE"
"""It may be absent: nothing is copied because of its absence."""

DATANODE_STATES = (IN_SERVICE, DECOMMISSIONING, DECOMMISSIONED, ENTERING_MAINTENANCE, IN_MAINTENANCE)

OPEN = "OPEN"
CLOSED = "CLOSED"
"""States of a pipeline: it takes blocks, or only holds them."""
