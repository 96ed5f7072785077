"""The checker, built once for all tests here. Without Go they fail and say so: nothing is skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.linearizability.checker import CheckerError, build


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("checker"))
    except CheckerError as error:
        pytest.fail(str(error))
