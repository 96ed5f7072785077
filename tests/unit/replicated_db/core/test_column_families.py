from __future__ import annotations

import pytest

from replicated_db.core.tables import column_families
from replicated_db.core.tables.column_families import LOCAL_FAMILIES, MAX_FAMILIES, RETRY, families
from replicated_db.core.tables.merge import ADD_INT64
from schemas import column_families as contract


def test_retry_table_comes_first():
    declared = families(["a", "b"], [ADD_INT64])
    assert declared.names == (RETRY, "a", "b")
    assert dict(declared.positions) == {RETRY: 0, "a": 1, "b": 2}
    assert set(declared.seeds) == set(declared.names)
    assert declared.operators["add_int64"] is ADD_INT64


@pytest.mark.parametrize("names", [["a", "a"], [RETRY], ["default"], *([name] for name in LOCAL_FAMILIES)])
def test_illegal_names(names: list[str]):
    with pytest.raises(ValueError, match="distinct and not reserved"):
        families(names)


def test_too_many():
    families([f"f{n}" for n in range(MAX_FAMILIES - 1)])
    with pytest.raises(ValueError, match=f"at most {MAX_FAMILIES}"):
        families([f"f{n}" for n in range(MAX_FAMILIES)])


def test_the_contracts_figures():
    assert column_families.RETRY == contract.RETRY_TABLE
    assert ADD_INT64.name == contract.ADD_INT64
    assert families(contract.OM_COLUMN_FAMILIES[1:]).names == contract.OM_COLUMN_FAMILIES
