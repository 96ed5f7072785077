"""What all files of one client share: pipelines, connections to datanodes, options.

What belongs here: objects that live as long as the client, and are made when the first key is opened.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

from producers.blocks.block_tokens import KeyTokens
from producers.blocks.datanode_directory import Directory
from producers.blocks.datanodes import Datanodes
from producers.blocks.small_blocks import SmallBlocks, Together
from producers.blocks.stream_options import StreamOptions
from producers.errors import CLIENT_CLOSED, ClientClosed
from producers.files.block_reservations import BlockReservations
from producers.files.core.inline_limit import InlineLimit
from producers.reads.reads import Reads
from producers.requests.call_spans import NO_SPANS, SpansOfClient
from producers.requests.keys import Requester
from schemas.records.rows import NO_KEY
from schemas.security.tls import ProcessTls
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Deadline

PEER = "client"
"""The client's name in HELLO."""


class KeyStreams:
    """Access to the datanodes; safe to share between threads.

    ``options`` are used for keys that are opened without options; ``spans`` tell what writing a key did.
    """

    def __init__(
        self, reads: Reads, options: StreamOptions | None = None, spans: SpansOfClient = NO_SPANS,
        tls: ProcessTls | None = None, *, together: Together = nullcontext,
    ) -> None:  # fmt: skip
        """In a block of ``together`` the client's requests gather, and leave together."""
        self._tls = tls
        self._together = together
        self.options = options or StreamOptions()
        self.spans = spans
        self.directory = Directory(reads)
        self._reads = reads
        self.inline_limit = InlineLimit()
        """Up to which size the cluster keeps keys in its tables, as far as known."""
        self.reservations = BlockReservations(lambda bucket, session: self.tokens_to_write((*bucket, NO_KEY), session))
        """Blocks for the small keys to come."""
        self._datanodes: Datanodes | None = None
        self._small: SmallBlocks | None = None
        self._closed = False
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """In a forked process, make a lock that nobody holds; what this has begins anew by itself."""
        self._lock = threading.Lock()

    @property
    def datanodes(self) -> Datanodes:
        """Connections to the datanodes of the cluster that the Object Manager names.

        Raises as :meth:`Directory.refresh`, and ClientClosed.
        """
        with self._lock:
            if self._closed:
                raise ClientClosed(CLIENT_CLOSED, "the client is closed")
            if self._datanodes is None:
                self._datanodes = Datanodes(
                    cluster=self.directory.cluster_name(), peer=PEER, tls=self._tls,
                    brokers_id=self._reads.cluster.brokers_id,
                )  # fmt: skip
            return self._datanodes

    @property
    def small_blocks(self) -> SmallBlocks:
        """What writes the small blocks of all keys; raises as :attr:`datanodes`."""
        datanodes = self.datanodes
        with self._lock:
            if self._small is None:
                self._small = SmallBlocks(datanodes, self._together)
            return self._small

    def tokens_to_write(self, place: tuple[str, str, str], session_id: int) -> KeyTokens:
        """Return where the tokens come from for the blocks of a key (volume, bucket, key) that is being written."""
        return KeyTokens(
            lambda: self._reads.open_key_tokens(*place, session_id=session_id), self.directory.gives_tokens
        )

    def tokens_to_read(self, place: tuple[str, str, str]) -> KeyTokens:
        """Return where the tokens come from for the blocks of a key that is read."""
        return KeyTokens(lambda: self._reads.key_to_read(*place)[2], self.directory.gives_tokens)

    def release(self, client: Requester, deadline: Deadline) -> None:
        """Give reserved blocks back, before the client is closed; waits for the answers for a moment."""
        self.reservations.close(client, deadline)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._closed = True
            datanodes, self._datanodes = self._datanodes, None
            small, self._small = self._small, None
        if small is not None:
            small.close()
        if datanodes is not None:
            datanodes.close()
