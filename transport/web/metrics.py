"""Metrics of a process in Prometheus' text format, made with Prometheus' own library.

They are the process's own figures, and processor time, memory, file descriptors, the collector's runs and the version
of Python. Figures are read when somebody asks. So nothing is counted twice, and the figure of a pipeline or peer that
is gone is no longer shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4"
"""Content type of :meth:`Metrics.text`; the server adds the character set."""

Sample = tuple[Mapping[str, str], float]
"""Labels and figure."""


class _Own(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Return nothing: at registration the figures need not exist yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the present figures."""
        return self._families()


class Metrics:
    """Metrics of one process; ``families`` returns the present figures."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Own(families))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self) -> str:
        """Return all metrics as text."""
        return generate_latest(self.registry).decode()

    def page(self) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return the handler of ``GET /metrics`` in an application of aiohttp."""

        async def show(_: web.Request) -> web.Response:
            return web.Response(text=self.text(), headers={"Content-Type": f"{CONTENT_TYPE}; charset=utf-8"})

        return show


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Return a gauge or a counter; a counter's ``name`` ends in ``_total``. All samples have the same labels."""
    found = list(samples)
    labels = list(found[0][0]) if found else []
    made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = made(name, text, labels=labels)
    for values, figure in found:
        metric.add_metric([values[label] for label in labels], figure)
    return metric
