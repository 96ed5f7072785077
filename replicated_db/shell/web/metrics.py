"""Metrics of a process in Prometheus' text format, by its own library: what the process says of itself, and processor time, memory and
file descriptors, the collector's runs and the version of Python.

Figures are read when somebody asks: nothing is counted twice, and a figure that is gone (a pipeline, a peer) is not shown any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4"
"""Of what :meth:`Metrics.text` returns; the server adds the character set."""

Sample = tuple[Mapping[str, str], float]
"""Labels and figure."""


class _Own(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the figures need not be there yet when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the figures of now."""
        return self._families()


class Metrics:
    """Of one process; ``families`` returns the figures of now."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Own(families))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> str:
        """Return them all as text."""
        return generate_latest(self._registry).decode()


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Return a gauge or a counter; a counter's ``name`` ends in ``_total``. All samples have the same labels."""
    found = list(samples)
    labels = list(found[0][0]) if found else []
    made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = made(name, text, labels=labels)
    for values, figure in found:
        metric.add_metric([values[label] for label in labels], figure)
    return metric
