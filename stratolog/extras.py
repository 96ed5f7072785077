"""The libraries of each extra of the installation, and the message for an extra that is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from stratolog.errors import Unavailable

HOST = frozenset(
    {"avro", "faust", "mode", "aiokafka", "aiohttp", "prometheus_client", "rocksdict", "sortedcontainers", "uvloop"}
)
EXTRAS: Mapping[str, Collection[str]] = {
    "om": HOST,
    "datanode": HOST,
    "ui": frozenset({"aiohttp", "jinja2"}),
    "tracing": frozenset({"opentelemetry"}),
    "spark": frozenset({"pyspark", "pandas", "pyarrow", "numpy", "aiohttp", "prometheus_client"}),
}
"""Libraries by extra, as pyproject.toml has them, as far as we import them."""


@contextmanager
def libraries_of(extra: str) -> Iterator[None]:
    """Import code that needs an extra within this.

    Raises Unavailable, naming the extra, if one of its libraries is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise Unavailable(f"{error.name} is not installed: install stratolog with the extra '{extra}'") from error


def missing_extra(error: Exception) -> str | None:
    """Say what to install if the error is a missing library of an extra; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    library = (error.name or "").partition(".")[0]
    names = [extra for extra, libraries in EXTRAS.items() if library in libraries]
    if not names:
        return None
    wanted = " or ".join(f"'{name}'" for name in names)
    return (
        f"{library} is not installed: this needs stratolog with the extra {wanted}: pip install 'stratolog[{names[0]}]'"
    )


def check_extras(extras: Collection[str]) -> None:
    """Raise Unavailable, naming everything that is missing, if a library of these extras is not installed."""
    missing = {
        extra: gone
        for extra in extras
        if (gone := sorted(name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None))
    }
    if missing:
        named = ", ".join(sorted({name for gone in missing.values() for name in gone}))
        without = " ('stratolog up --no-audit' goes without the extra 'spark')" if "spark" in missing else ""
        raise Unavailable(
            f"not installed: {named}; a stack needs stratolog with its extras: pip install "
            f"'stratolog[{','.join(missing)}]'{without}"
        )


def check_spark() -> None:
    """Raise Unavailable if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable("pyspark is not installed: install stratolog with the extra 'spark'")
