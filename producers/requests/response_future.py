"""The future of a response, which is told in the process that sent the request."""

from __future__ import annotations

from concurrent.futures import Future

from producers.errors import WRONG_PROCESS, OutcomeUnknown
from schemas.records.messages import Response
from transport.processes import this_process


class ResponseFuture(Future[Response]):
    """A future that nobody waits for in vain: in a forked process it raises OutcomeUnknown, unless it was told before.

    Raises it in ``result`` and in ``exception``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = this_process()
        self._is_told = False

    def set_result(self, result: Response) -> None:
        """Tell the response."""
        super().set_result(result)
        self._is_told = True

    def set_exception(self, exception: BaseException | None) -> None:
        """Tell why there is no response."""
        super().set_exception(exception)
        self._is_told = True

    def result(self, timeout: float | None = None) -> Response:
        """As that of any future."""
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As that of any future."""
        self._check()
        return super().exception(timeout)

    def _check(self) -> None:
        if self._process != this_process() and not self._is_told:
            raise OutcomeUnknown(
                WRONG_PROCESS,
                f"process {self._process} sent the request and hears the answer; this one, {this_process()}, was "
                "forked from it and does not: wait for the answer there, or send a request of its own here",
            )
