"""Metrics of a process: its own figures as Prometheus reads them, and those of the process."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from transport.web.metrics import Metrics, family


def read(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for one in text_string_to_metric_families(metrics.text()):
        for sample in one.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_figures_are_those_of_the_moment_with_the_process_s():
    figures = {"0": 1.0}

    def families():
        yield family("mine_index", "gauge", "An index.", [({"shard": name}, one) for name, one in figures.items()])
        yield family("mine_asked_total", "counter", "Asked.", [({}, 7)])

    metrics = Metrics(families)
    assert read(metrics)["mine_index"] == [({"shard": "0"}, 1)]
    figures.clear()
    figures["1"] = float(1 << 44)
    found = read(metrics)
    assert found["mine_index"] == [({"shard": "1"}, 1 << 44)], "one that is gone is not shown"
    assert found["mine_asked_total"] == [({}, 7)]
    assert "# TYPE mine_asked_total counter" in metrics.text()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert found[name][0][1] > 0


def test_odd_labels_are_escaped():
    odd = 'a "peer"\\ of\nmine'
    metrics = Metrics(lambda: [family("mine", "gauge", "", [({"peer": odd}, 1)])])
    assert read(metrics)["mine"] == [({"peer": odd}, 1)]


def test_a_family_without_samples():
    metrics = Metrics(lambda: [family("mine", "gauge", "Nothing yet.", [])])
    assert "mine" not in read(metrics)
