"""The awaited methods are made from Client's, and what is committed is what would be made now."""

from __future__ import annotations

import inspect

import pytest

from build_tools import async_methods
from build_tools.async_methods import BEGIN, END, NoAwaitedForm, generated, updated
from producers import AsyncClient, Client

CLIENT = '''class Client:
    def count(self, volume: str, *, limit: int = 1) -> int:
        """Count.

        >>> client.count("v")  # doctest: +SKIP
        """
        body = bodies.count(volume, limit=limit)
        return count_of(self.call(body))

    def _private(self) -> None:
        """Not for users."""
        self.call(bodies.nothing())

    def by_hand(self) -> None:
        """Neither sends nor reads."""
        self.reads.close()
'''
AWAITED = '''    async def count(self, volume: str, *, limit: int = 1) -> int:
        """As :meth:`producers.Client.count`."""
        body = bodies.count(volume, limit=limit)
        return count_of(await self.call(body))
'''


def test_what_is_committed_is_what_would_be_written() -> None:
    committed = async_methods.TARGET.read_text(encoding="utf-8")
    assert committed == async_methods.current(), "run: python -m build_tools.async_methods"


def test_each_request_and_read_of_the_client_is_awaited_and_the_rest_is_left() -> None:
    assert generated(CLIENT) == AWAITED
    found = generated(async_methods.SOURCE.read_text(encoding="utf-8"))
    made = [name for name in vars(AsyncClient) if f"def {name}(" in found]
    by_hand = {"submit", "submit_with", "together", "call", "open", "close", "over"}
    public = {
        name for name, value in vars(Client).items() if inspect.isfunction(value) or isinstance(value, classmethod)
    }
    assert {name for name in public if not name.startswith("_")} == {*made, *by_hand}


def test_a_read_in_a_form_that_is_not_known_is_refused() -> None:
    odd = CLIENT.replace("return count_of(self.call(body))", "return self.reads.first(volume).next().page")
    with pytest.raises(NoAwaitedForm, match="count is written in a way"):
        generated(odd)


def test_a_lost_mark_is_refused() -> None:
    assert updated(f"a\n{BEGIN}old{END}b\n", "new\n") == f"a\n{BEGIN}\nnew\n\n{END}b\n"
    for text in ("", BEGIN, END + BEGIN):
        with pytest.raises(ValueError, match="lost a mark"):
            updated(text, "new\n")


def test_both_clients_begin_with_the_same_settings() -> None:
    """Who goes from one to the other finds the same deadline, limit and lingering."""
    awaited = inspect.signature(AsyncClient).parameters
    plain = inspect.signature(Client).parameters
    shared = [name for name in plain if name in awaited]
    assert {"deadline_ms", "max_in_flight", "max_linger_ms", "connect_timeout_ms"} <= set(shared)
    assert {name: plain[name].default for name in shared} == {name: awaited[name].default for name in shared}
