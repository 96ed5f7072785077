"""One connection that a datanode has accepted: HELLO, then streams and requests one after another, until the peer goes.

The peer is told its errors. After an error that answers a request the connection goes on. After a stream's error, or a
malformed frame, it is closed, because bytes that still arrive can no longer be attributed. A defect is logged with its
traceback and answered with FAILED.
"""

from __future__ import annotations

from typing import Any

from datanode_processors.errors import MAX_MESSAGE_CHARACTERS, MAX_NAME_CHARACTERS, BlockError, shown
from datanode_processors.wire.core.permits import NEEDS_NO_TOKEN, check_member, check_request
from datanode_processors.wire.core.stream import MAX_BLOCK_BYTES, MAX_WINDOW_BYTES
from datanode_processors.wire.counters import Counters
from datanode_processors.wire.forwarding import Forwarding, StreamHost, stream_request
from datanode_processors.wire.ports import Note
from datanode_processors.wire.reading import send_block
from datanode_processors.wire.wire import (
    Wire,
    WireClosed,
    failure,
    opening_of,
    read_request,
    refusal,
    stream_error,
    unreadable,
)
from datanode_processors.wire.wire_tls import check_name
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import ConversationFailed, Event, PeerGreeted, PeerRefused, own_hello
from schemas.conversation.limits import UnreadableRecord
from schemas.conversation.states import ConversationRole
from schemas.records.datanode import (
    Accepted,
    BlocksWritten,
    BlockTokenKeys,
    Forwarded,
    OpenStream,
    ReadBlock,
    SalvageBlock,
    WatchBlocks,
    WriteBlocks,
)
from schemas.records.packets import Frame, FrameHeader, Kind

FROM_MEMBERS = Forwarded | OpenStream | WriteBlocks | WatchBlocks
"""What a datanode sends only to members of its own pipeline."""


class ServedConnection:
    """Serves one peer on the thread that calls ``serve``."""

    def __init__(self, node: StreamHost, wire: Wire, counters: Counters, note: Note) -> None:
        self.wire = wire
        self.peer = ""
        self.streaming = False
        """Whether a stream is open."""
        self._node = node
        self._counters = counters
        self._note = note
        self._stopping = False
        self._talk = wire.conversation(
            ConversationRole.SERVER, own_hello(node.name, node.cluster), brokers=node.brokers
        )

    def stop(self) -> None:
        """Have the connection end: its request or stream fails with STOPPING. Called by another thread."""
        self._stopping = True
        self.wire.stop_receiving()

    def serve(self) -> None:
        """Serve the peer until it goes, or is refused. Raises nothing."""
        try:
            self._greet()
            while True:
                self._serve_frame(self._hear(self._node.limits.idle_timeout_s))
        except WireClosed:
            if self._stopping:
                self._refuse(BlockError(stream_errors.STOPPING, f"datanode {self._node.name} stops"))
        except BlockError as error:
            self._refuse(error)
        except Exception as error:
            self._note(
                f"defect in a connection of {self.peer or 'a stranger'}: {_said(error)}", peer=self.peer, error=error
            )
            self._refuse(self._defect(error))
        finally:
            self.wire.close()

    def _greet(self) -> None:
        timeout_s = self._node.limits.handshake_timeout_s
        if self._node.tls is not None:
            self.wire.secure(self._node.tls, timeout_s)
            if self._stopping:  # the socket that was shut was the one before
                raise WireClosed("the connection is stopped")
        self.wire.wait_send(self._talk.hello(), timeout_s=timeout_s)
        event = self._hear(timeout_s)
        if isinstance(event, PeerRefused):
            said = refusal(event.error)
            raise BlockError(said.code, said.message, hint=said.hint, datanode=said.datanode)
        assert isinstance(event, PeerGreeted), event  # noqa: S101 - nothing else is possible before HELLO
        self.peer = shown(event.hello.peer, MAX_NAME_CHARACTERS)
        check_name(self.wire.identity, event.hello.peer)
        self._counters.name(self.wire, self.peer)

    def _hear(self, timeout_s: float) -> Event:
        """Return what the peer says next; raises BlockError, WireClosed."""
        try:
            return self.wire.wait_event(self._talk, timeout_s)
        except ConversationFailed as error:
            raise failure(error) from error
        except UnreadableRecord as error:
            raise refusal(unreadable(error)) from error

    def _serve_frame(self, event: Event) -> None:
        assert isinstance(event, Frame), event  # noqa: S101 - a server that was greeted hears OPEN or REQUEST
        if event.header.kind is Kind.OPEN:
            self._stream(event)
        else:
            self._request(event)

    # ----------------------------------------------------------------------------------------------- streams

    def _stream(self, frame: Frame) -> None:
        header = frame.header
        with self._counters.stream(self._node.limits.max_streams) as outcome:
            self.streaming = True
            try:
                # The stream takes its frames out of the same buffer, until it has acknowledged END.
                request, tokens = stream_request(frame)
                limit_bytes = self._check_permit(request, tokens)
                Forwarding(self._node, self.wire, header, request, limit_bytes=limit_bytes).run()
                self._talk.stream_is_over()
                outcome.completed = True
            except WireClosed as error:
                outcome.reclaimed = True
                self._note(f"stream of {self.peer}: {error}; the stream is given up", peer=self.peer)
                if self._stopping:
                    error_to_tell = BlockError(stream_errors.STOPPING, f"datanode {self._node.name} stops")
                    self._refuse(error_to_tell, header)
                raise
            except BlockError as error:
                self._note(f"stream of {self.peer} ends: {error}", peer=self.peer)
                self._refuse(error, header)
                raise WireClosed("the stream was refused") from error
            except Exception as error:
                self._note(f"defect in a stream of {self.peer}: {_said(error)}", peer=self.peer, error=error)
                self._refuse(self._defect(error), header)
                raise WireClosed("the stream failed") from error
            finally:
                self.streaming = False

    # ---------------------------------------------------------------------------------------------- requests

    def _request(self, frame: Frame) -> None:
        header = frame.header
        self._counters.request()
        try:
            request, tokens = read_request(frame)
            limit_bytes = self._check_permit(request, tokens)
            if isinstance(request, ReadBlock | SalvageBlock):
                send_block(self._node, self.wire, self._talk, header, request, limit_bytes)
                return
            if isinstance(request, WriteBlocks):
                reply = encode(self._write_together(frame, request))
            elif isinstance(request, BlockTokenKeys):
                reply = encode(self._take_keys(request))
            else:
                reply = encode(self._node.pipelines.handle(request))
            answer = self._talk.say(Kind.REPLY, reply, stream=header.stream, sequence=header.sequence)
        except BlockError as error:
            answer = self._error(error, header)
        except WireClosed:
            raise
        except Exception as error:
            self._note(f"defect in a request of {self.peer}: {_said(error)}", peer=self.peer, error=error)
            answer = self._error(self._defect(error), header)
        self.wire.wait_send(answer, timeout_s=self._node.limits.send_timeout_s)

    def _check_permit(self, request: Any, tokens: bytes) -> int:
        """Raise PERMISSION_DENIED, or for want of a block token, unless the request is the peer's to send.

        Return up to which offset a stream may write, or a block may be read.
        """
        if self._node.tls is None:
            return MAX_BLOCK_BYTES
        identity, guard = self.wire.identity, self._node.block_tokens
        check_request(identity, request)
        if isinstance(request, FROM_MEMBERS) and identity is not None:
            check_member(identity, *self._node.pipelines.members_for(request))
        if guard is None or (identity is not None and identity.role in NEEDS_NO_TOKEN):
            return MAX_BLOCK_BYTES
        limit = guard.check(*(opening_of(request) if isinstance(request, WriteBlocks) else (request, tokens)))
        return MAX_BLOCK_BYTES if limit is None else limit

    def _take_keys(self, keys: BlockTokenKeys) -> Accepted:
        """Take the keys of block tokens, from an Object Manager node in TLS alone."""
        if self._node.tls is None or self.wire.identity is None:
            raise BlockError(stream_errors.PERMISSION_DENIED, "keys of block tokens come in TLS, or not at all")
        guard = self._node.block_tokens
        if guard is None:
            return Accepted(detail=f"datanode {self._node.name} demands no block tokens")
        return guard.tell(keys)

    def _write_together(self, frame: Frame, request: WriteBlocks) -> BlocksWritten:
        """Write whole blocks: an exchange counts as a stream."""
        if self._stopping:
            raise BlockError(stream_errors.STOPPING, f"datanode {self._node.name} stops")
        with self._counters.stream(self._node.limits.max_streams) as outcome:
            # The frame stays in the buffer: nothing is received before the answer is sent.
            written = self._node.small_blocks.write(frame, request, lambda: not self.wire.has_hung_up())
            outcome.completed = True
            return written

    def _error(self, error: BlockError, header: FrameHeader | None = None) -> bytes:
        """Return the ERROR frame that says ``error``, to the exchange that the frame with ``header`` began."""
        stream, sequence = (header.stream, header.sequence) if header else (0, 0)
        record = encode(stream_error(self._node.name, error))
        return self._talk.say(Kind.ERROR, record, stream=stream, sequence=sequence, offset=max(0, error.offset))

    def _defect(self, error: Exception) -> BlockError:
        return BlockError(
            stream_errors.FAILED, f"{type(error).__name__} in datanode {self._node.name}; its log says more"
        )

    def _refuse(self, error: BlockError, header: FrameHeader | None = None) -> None:
        """Send the peer an error, and make sure that it can read it."""
        try:
            self.wire.wait_send(self._error(error, header), timeout_s=self._node.limits.linger_s)
        except WireClosed:
            return
        self.wire.discard(self._node.limits.linger_s, MAX_WINDOW_BYTES)


def _said(error: Exception) -> str:
    return shown(repr(error), MAX_MESSAGE_CHARACTERS)
