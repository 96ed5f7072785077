"""One connection that a datanode has accepted: HELLO, then streams and requests one after another, until the peer goes.

What a peer did wrong is told it: in an answer to a request the connection goes on, after a stream's error or a frame that is none it is
closed, because what still comes cannot be placed any more. A defect is logged with its traceback and told as FAILED.
"""

from __future__ import annotations

from datanode_processors.errors import MAX_MESSAGE_CHARACTERS, MAX_NAME_CHARACTERS, BlockError, shown
from datanode_processors.wire.core.stream import MAX_WINDOW_BYTES
from datanode_processors.wire.counters import Counters
from datanode_processors.wire.forwarding import Forwarding, StreamHost, stream_request
from datanode_processors.wire.ports import Note
from datanode_processors.wire.reading import send_block
from datanode_processors.wire.wire import Wire, WireClosed, error_frame, hello_frame, read_hello, read_record
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import Hello, ReadBlock, SalvageBlock
from schemas.records.packets import BadFrame, Frame, FrameHeader, Kind, encode_frame


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

    def stop(self) -> None:
        """Have the connection end: what it does is told STOPPING. Called by another thread."""
        self._stopping = True
        self.wire.stop_receiving()

    def serve(self) -> None:
        """Serve the peer until it goes, or is refused. Raises nothing."""
        try:
            self._greet()
            while True:
                self._serve_frame(self.wire.wait_frame(self._node.limits.idle_timeout_s))
        except WireClosed:
            if self._stopping:
                self._refuse(BlockError(stream_errors.STOPPING, f"datanode {self._node.name} stops"))
        except BadFrame as error:
            self._refuse(BlockError(stream_errors.BAD_FRAME, str(error)))
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
        self.wire.wait_send(hello_frame(self._node.name, self._node.cluster), timeout_s=timeout_s)
        hello: Hello = read_hello(self.wire.wait_hello(timeout_s), self._node.cluster)
        self.peer = shown(hello.peer, MAX_NAME_CHARACTERS)
        self._counters.name(self.wire, self.peer)

    def _serve_frame(self, frame: Frame) -> None:
        header = frame.header
        if header.kind is Kind.OPEN:
            self._stream(frame)
        elif header.kind is Kind.REQUEST:
            self._request(frame)
        else:
            raise BlockError(stream_errors.INVALID_REQUEST, f"{header.kind.name} outside of a stream")

    # ----------------------------------------------------------------------------------------------- streams

    def _stream(self, frame: Frame) -> None:
        header = frame.header
        with self._counters.stream(self._node.limits.max_streams) as outcome:
            self.streaming = True
            try:
                Forwarding(self._node, self.wire, header, stream_request(frame)).run()
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
            request = read_record(frame)
            if isinstance(request, ReadBlock | SalvageBlock):
                send_block(self._node, self.wire, header, request)
                return
            reply = encode(self._node.pipelines.handle(request))
            answer = encode_frame(Kind.REPLY, reply, stream=header.stream, sequence=header.sequence)
        except BlockError as error:
            answer = error_frame(self._node.name, error, stream=header.stream, sequence=header.sequence)
        except WireClosed:
            raise
        except Exception as error:
            self._note(f"defect in a request of {self.peer}: {_said(error)}", peer=self.peer, error=error)
            answer = error_frame(self._node.name, self._defect(error), stream=header.stream, sequence=header.sequence)
        self.wire.wait_send(answer, timeout_s=self._node.limits.send_timeout_s)

    def _defect(self, error: Exception) -> BlockError:
        return BlockError(
            stream_errors.FAILED, f"{type(error).__name__} in datanode {self._node.name}; its log says more"
        )

    def _refuse(self, error: BlockError, header: FrameHeader | None = None) -> None:
        """Tell the peer, and see to it that it can read it."""
        stream, sequence = (header.stream, header.sequence) if header else (0, 0)
        frame = error_frame(self._node.name, error, stream=stream, sequence=sequence)
        try:
            self.wire.wait_send(frame, timeout_s=self._node.limits.linger_s)
        except WireClosed:
            return
        self.wire.discard(self._node.limits.linger_s, MAX_WINDOW_BYTES)


def _said(error: Exception) -> str:
    return shown(repr(error), MAX_MESSAGE_CHARACTERS)
