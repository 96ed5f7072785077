"""What a datanode refuses, as an error to look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datanode_processors.errors import BlockError


def refused(act: Callable[[], object]) -> BlockError:
    """Do what a datanode must refuse, and return the refusal."""
    with pytest.raises(BlockError) as caught:
        act()
    return caught.value
