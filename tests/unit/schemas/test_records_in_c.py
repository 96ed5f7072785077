"""Records made in C: what comes out is what ``__init__`` makes, and what it refuses is refused in its words."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import shutil
import subprocess
import sys
import sysconfig
import threading
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, Generic, Self, TypeVar

import pytest

from om_processors.namespace.context import PreExecuteContext, RequestPreparation
from replicated_db.core.execution.service import Proposal
from schemas.codecs.codec import CLASSES
from schemas.records.record import made_in_c, record

C_COMPILER = shutil.which(str(sysconfig.get_config_var("CC") or "cc").split(maxsplit=1)[0])
if C_COMPILER is None:
    pytest.skip("there is no C compiler here", allow_module_level=True)
native: Any = importlib.import_module("schemas.records.native")
MADE: dict[str, Any] = {**CLASSES, **{cls.__name__: cls for cls in (PreExecuteContext, Proposal, RequestPreparation)}}
T = TypeVar("T")


@record
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


@record
class Placed(Point):
    z: int = 3


@record
class Holder(Generic[T]):
    held: T


@record
class Nothing:
    pass


def by_init(cls: Any, **values: Any) -> Any:
    """Make an instance as Python does."""
    made = cls.__new__(cls)
    cls.__init__(made, **values)
    return made


def values_of(cls: Any) -> dict[str, Any]:
    return {one.name: f"value {number}" for number, one in enumerate(fields(cls))}


def refusal(act: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(TypeError) as caught:
        act(*arguments, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_record_is_what_init_makes(name: str):
    cls, values = MADE[name], values_of(MADE[name])
    made = cls(**values)
    assert type(made) is cls
    assert made == by_init(cls, **values)
    assert [getattr(made, one) for one in values] == list(values.values())
    assert cls(**dict(reversed(values.items()))) == made


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_record_has_the_same_defaults(name: str):
    cls = MADE[name]
    values = {one.name: "given" for one in fields(cls) if one.default is one.default_factory is MISSING}
    assert cls(**values) == by_init(cls, **values)


def test_each_default_of_a_factory_is_its_own():
    first, second = Point(x=1), Point(x=1)
    assert first == second
    assert first.tags is not second.tags
    assert first.y is second.y


def test_a_record_of_another_has_the_fields_of_both():
    assert Placed(z=1, x=5) == by_init(Placed, z=1, x=5)
    assert [one.name for one in fields(Placed)] == ["x", "y", "tags", "z"]


def test_generic_and_empty_records():
    assert Holder(held=1) == Holder[int](held=1)
    assert Nothing() == by_init(Nothing)


@pytest.mark.parametrize(
    ("positional", "given"),
    [
        ((), {}),
        ((), {"y": 1}),
        ((), {"x": 1, "w": 2}),
        ((), {"w": 2}),
        ((1,), {}),
        ((1,), {"x": 1}),
        ((1, 2, 3, 4), {}),
    ],
)
def test_a_wrong_call_is_refused_in_pythons_words(positional: tuple[int, ...], given: dict[str, int]):
    made = Point.__new__(Point)
    assert refusal(Point, *positional, **given) == refusal(Point.__init__, made, *positional, **given)


@made_in_c
@dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)
    z: int = field(default=3, kw_only=True)


@pytest.mark.parametrize(
    ("positional", "given"),
    [((1,), {}), ((), {"x": 1}), ((1, 5), {"z": 4}), ((1,), {"tags": ["a"], "y": 0}), ((1, 5, ["a"]), {"z": 4})],
)
def test_by_position_and_by_name(positional: tuple[Any, ...], given: dict[str, Any]):
    made = Frozen.__new__(Frozen)
    Frozen.__init__(made, *positional, **given)
    assert Frozen(*positional, **given) == made
    with pytest.raises(FrozenInstanceError):
        made.x = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("positional", "given"), [((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 1}), ((1, 2), {"y": 3}), ((1,), {"w": 1})]
)
def test_a_wrong_call_by_position(positional: tuple[Any, ...], given: dict[str, Any]):
    made = Frozen.__new__(Frozen)
    assert refusal(Frozen, *positional, **given) == refusal(Frozen.__init__, made, *positional, **given)


def test_more_keywords_than_fields():
    wrong = {f"other{number}": number for number in range(20)}
    assert "unexpected keyword argument" in refusal(Point, x=1, **wrong)


def test_names_that_are_not_interned():
    given: dict[str, Any] = {"x": 1, "TAGS".lower(): ["a"], "y": 7}
    assert Point(**given) == by_init(Point, x=1, y=7, tags=["a"])


def test_replace_copy_and_pickle():
    made = Point(x=1, y=9, tags=["a"])
    assert replace(made, x=3) == Point(x=3, y=9, tags=["a"])
    assert copy.deepcopy(made) == made
    assert copy.copy(made).tags is made.tags
    assert pickle.loads(pickle.dumps(made)) == made


def test_values_are_held_once_and_let_go():
    value = object()
    before = sys.getrefcount(value)
    made = [Holder(held=value) for _ in range(100)]
    assert sys.getrefcount(value) == before + 100
    del made
    assert sys.getrefcount(value) == before
    for _ in range(100):  # what was filled before a refusal is let go
        refusal(Holder, held=value, other=None)
        refusal(Point, y=value)
        refusal(Frozen, value, value, value, value)
    gc.collect()  # of the exceptions
    assert sys.getrefcount(value) == before


def test_circles_are_collected():
    class Witness:
        gone = 0

        def __del__(self) -> None:
            Witness.gone += 1

    for _ in range(10):
        held: list[Any] = [Witness()]
        held.append(Holder(held=held))
    del held
    gc.collect()
    assert Witness.gone == 10


def test_a_factory_that_fails():
    def fails() -> list[str]:
        raise ValueError("no default today")

    @record
    class Failing:
        x: int
        tags: list[str] = field(default_factory=fails)

    with pytest.raises(ValueError, match="no default today"):
        Failing(x=1)
    assert Failing(x=1, tags=[]).tags == []


def test_what_does_more_than_fill_slots_is_left_alone():
    @record
    class Checked:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")

    @made_in_c
    @dataclass(slots=True)
    class Mixed:
        y: int = field(default=2, kw_only=True)
        x: int

    @record
    class Made:
        x: int

        def __new__(cls, **_: Any) -> Self:
            made = object.__new__(cls)
            made.x = -1  # type: ignore[misc]
            return made

    @record
    class Doubled:
        x: int

        def __init__(self, *, x: int) -> None:
            self.x = 2 * x  # type: ignore[misc]

    @made_in_c
    @dataclass(slots=True, init=False)
    class Bare:
        x: int

    assert Doubled(x=2).x == 4
    assert not hasattr(Bare(), "x")
    with pytest.raises(ValueError, match="negative"):
        Checked(x=-1)
    assert Mixed(1) == Mixed(x=1, y=2)
    assert Made(x=4).x == 4


def test_a_class_of_a_record_has_its_own_constructor():
    class Named(Point):
        name = "none"

    assert type(Named(x=1)) is Named
    assert vars(Named(x=1, y=3)) == {}

    class Counted(Point):
        made = 0

        def __init__(self, **values: Any) -> None:
            Counted.made += 1
            super().__init__(**values)

    assert Counted(x=1).y == 2
    assert Counted.made == 1


def test_a_dataclass_without_slots_is_refused():
    @dataclass(kw_only=True)
    class Loose:
        x: int

    with pytest.raises(TypeError, match="Loose has no slot x"):
        native.make_in_c(Loose, (("x", None, None),), 0)
    assert Loose(x=1).x == 1


def test_many_threads_make_records():
    found: list[list[Point]] = []

    def make() -> None:
        found.append([Point(x=number, tags=[str(number)]) for number in range(2000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(points == found[0] for points in found)
    assert len(found) == 8


def test_without_the_c():
    program = (
        "import sys; sys.modules['schemas.records.native'] = None\n"
        "from schemas.records.messages import CreateVolume\n"
        "print(CreateVolume(volume='v').volume)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "v\n"
