"""Alert rules and Grafana boards, without Prometheus and Grafana: they name metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_tools.reference.metrics import FOREIGN, families

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "observability"
BOARDS = sorted((FOLDER / "grafana" / "boards").glob("*.json"))
RULES = yaml.safe_load((FOLDER / "prometheus" / "rules.yml").read_text())
JOBS = {
    one["job_name"] for one in yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
}

WORD = re.compile(r"[a-z_][a-z0-9_]*")
GIVEN = {"le", "job", "instance"}
"""Labels that Prometheus gives."""
LANGUAGE = {
    "and", "or", "unless", "on", "ignoring", "group_left", "group_right", "by", "without", "bool", "offset",
    "sum", "max", "min", "avg", "count", "rate", "increase", "time", "vector", "histogram_quantile", "absent",
}  # fmt: skip
"""Words of the query language that rules and boards use."""


def known() -> dict[str, set[str]]:
    """Return the labels of each name that a query may have, a histogram's three names among them."""
    found = {"up": set[str]()}
    for name, kind, _, labels in (*families(), *FOREIGN):
        names = [f"{name}_{end}" for end in ("bucket", "sum", "count")] if kind == "histogram" else [name]
        found |= {one: set(labels) for one in names}
    return found


def queries() -> Iterator[tuple[str, str]]:
    for group in RULES["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield from ((f"{path.name}: {panel['title']}", one["expr"]) for one in panel["targets"])


def unknown_words(query: str) -> set[str]:
    """Return the words of a query that are neither metrics, nor labels of one of its metrics, nor the language's."""
    names = known()
    bare = re.sub(r'"[^"]*"|\[[0-9a-z]+\]|\b[0-9.]+(e[0-9]+)?\b', " ", query)
    words = set(WORD.findall(bare))
    used = words & set(names)
    labels = GIVEN.union(*(names[name] for name in used))
    return words - used - labels - LANGUAGE if used else {"no metric"}


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_metric_and_label_of_a_query_exists(where: str, query: str) -> None:
    assert unknown_words(query) == set(), where


def test_the_check_sees_what_is_not_there() -> None:
    assert unknown_words("sum by (node) (rate(stratolog_requests_total[1m]))") == set()
    assert unknown_words("sum by (peer) (rate(stratolog_requests_total[1m]))") == {"peer"}
    assert unknown_words("rate(stratolog_request_total[1m])") == {"no metric"}
    assert unknown_words("stratolog_term - stratolog_wrong") == {"stratolog_wrong"}
    assert unknown_words("stratolog_request_seconds") == {"no metric"}, "a histogram has three names, and not its own"


def test_counters_are_asked_for_their_rate() -> None:
    for where, query in queries():
        bare = re.findall(r"(?<!rate\()\b(stratolog_\w+_total|process_cpu_seconds_total)\b", query)
        assert not bare, where


def test_every_job_of_a_query_is_one_that_prometheus_asks() -> None:
    for where, query in queries():
        for wanted in re.findall(r'job=~?"([^"]*)"', query):
            assert set(wanted.split("|")) <= JOBS, where


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "action"}
        for page in re.findall(r"docs/\w+\.md", rule["annotations"]["action"]):
            assert (ROOT / page).exists(), rule["alert"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_is_whole(path: Path) -> None:
    """Its panels have data, a place of their own, and a source that is provisioned."""
    board = json.loads(path.read_text())
    sources = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    uids = {one["uid"] for one in sources}
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["targets"]
        assert {panel["datasource"]["uid"], *(one["datasource"]["uid"] for one in panel["targets"])} <= uids
        place = panel["gridPos"]
        own = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }  # fmt: skip
        assert place["x"] + place["w"] <= 24
        assert not cells & own, panel["title"]
        cells |= own
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_boards_have_identities_of_their_own() -> None:
    found = [json.loads(path.read_text()) for path in BOARDS]
    assert len({one["uid"] for one in found}) == len({one["title"] for one in found}) == len(BOARDS) == 3


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")], ids=["config", "rules"]
)
def test_prometheus_accepts_its_files_and_the_rules_fire(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=FOLDER / "prometheus", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
