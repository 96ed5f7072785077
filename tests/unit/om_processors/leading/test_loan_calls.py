"""The calls about loans over real HTTP: what each answer of another node means to the owner."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.leading.core.lending import Answer, Loan
from om_processors.leading.loan_calls import LoanCalls
from schemas.privilege import AUTHORIZATION
from tests.support.local.secret import SECRET


class Node:
    """Another node: answers as the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b"{}"
        self.asked: list[str] = []
        self.proofs: list[str | None] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                node.asked.append(f"{self.command} {self.path}")
                node.proofs.append(self.headers.get(AUTHORIZATION))
                self.send_response(node.status)
                self.send_header("Content-Length", str(len(node.body)))
                self.end_headers()
                self.wfile.write(node.body)

            do_GET = do_POST = _answer  # noqa: N815 - the names of the base class

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.http.server_port}"

    @property
    def loan(self) -> Loan:
        return Loan(shard=3, node="om2", address=self.address, heard_s=0.0)

    def says(self, body: Any, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(body).encode()


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    found = Node()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def node(served: Node) -> Node:
    served.says({})
    served.asked.clear()
    served.proofs.clear()
    return served


@pytest.fixture(scope="module")
def calls() -> LoanCalls:
    config: Any = SimpleNamespace(node="om1", secret=SECRET, tls=None)
    return LoanCalls(config)


NOWHERE = Loan(shard=3, node="om2", address="127.0.0.1:1", heard_s=0.0)


def test_a_node_that_will_lead(calls: LoanCalls, node: Node):
    node.says({"node": "om2", "against": []})
    calls.check_fitness(3, "om2", node.address)
    assert node.asked == ["GET /v1/shards/3/fitness"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"node": "om3", "against": []}, "om3 answers at {}, not om2"),
        ({"node": "om2", "against": ["it lags", "it stops"]}, "om2 may not lead now: it lags; it stops"),
    ],
)
def test_a_node_that_will_not_lead(calls: LoanCalls, node: Node, answer: Any, said: str):
    node.says(answer)
    with pytest.raises(OMError) as caught:
        calls.check_fitness(3, "om2", node.address)
    assert caught.value.message == said.format(node.address)


def test_nobody_to_lead(calls: LoanCalls, node: Node):
    with pytest.raises(OMError, match="om2 does not answer at 127.0.0.1:1: ConnectError"):
        calls.check_fitness(3, "om2", NOWHERE.address)
    node.body = b"no json"
    with pytest.raises(OMError, match="om2 does not answer at"):
        calls.check_fitness(3, "om2", node.address)


def test_a_shard_is_lent_with_the_owners_proof(calls: LoanCalls, node: Node):
    node.says({"term": 7, "shard": 3})
    assert calls.lend(3, "om2", node.address) == 7
    path = "/v1/shards/3/borrow?owner=om1"
    assert node.asked == [f"POST {path}"]
    assert SECRET.authorizes(node.proofs[0], "POST", node.address, path)


def test_a_borrower_that_does_not_lead(calls: LoanCalls, node: Node):
    node.says({"error": "INVALID_REQUEST", "message": "om2 could not claim shard 3"}, 400)
    with pytest.raises(OMError, match="om2 does not lead shard 3: .*om2 could not claim shard 3"):
        calls.lend(3, "om2", node.address)
    with pytest.raises(OMError, match="om2 does not lead shard 3: "):
        calls.lend(3, "om2", NOWHERE.address)


def test_what_a_borrowers_answer_means(calls: LoanCalls, node: Node):
    for leads, answer in ((True, Answer.LEADS), (False, Answer.DOES_NOT_LEAD)):
        node.says({"leads": leads})
        assert calls.renew(node.loan) is answer
    assert node.asked[0] == "POST /v1/shards/3/renew?owner=om1"
    node.says({"error": "x", "message": "y"}, 503)
    assert calls.renew(node.loan) is Answer.SILENT, "it lives, and may lead"
    node.body = b"no json"
    assert calls.renew(node.loan) is Answer.SILENT
    assert calls.renew(NOWHERE) is Answer.GONE


def test_a_loan_is_wanted_back(calls: LoanCalls, node: Node):
    node.says({"shard": 3})
    assert calls.want_back(node.loan) is None
    assert node.asked == ["POST /v1/shards/3/give-back?owner=om1"]
    node.says({"error": "x", "message": "it is busy"}, 503)
    assert "it is busy" in str(calls.want_back(node.loan))
    assert "ConnectError" in str(calls.want_back(NOWHERE))
