"""The link between the run and its job's controller: a Unix socket in the server's folder.

Both are processes of the server's host and of one user; the socket's folder is closed to others, so no port is opened
and no secret has to be passed. A frame is a JSON header and, after it, as many bytes as the header's `size` says; many
bytes are not sent at all: the frame carries the descriptor of a file that holds them.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedvisage.federation.nvflare.body import Body
from fedvisage.federation.nvflare.wire import Content, total

NAME = "run.sock"
LARGEST_HEADER = 1 << 24
BLOCK = 1 << 20
START = b"\n"


class Closed(Exception):
    """The other side has gone."""


class Link:
    """One connection; frames may be sent from any thread and are read by one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, header: dict[str, Any], pieces: Sequence[bytes | memoryview] = ()) -> None:
        """Send a frame; `Closed` where nobody listens any more."""
        self._send(header | {"size": total(pieces)}, [], pieces)

    def send_file(self, header: dict[str, Any], body: Body) -> None:
        """Send a frame whose bytes are in a file."""
        assert body.file is not None
        self._send(header | {"size": body.size}, [body.file], ())

    def _send(self, header: dict[str, Any], files: list[int], pieces: Sequence[bytes | memoryview]) -> None:
        text = json.dumps(header | {"file": bool(files)}).encode()
        try:
            with self._sending:
                socket.send_fds(self._socket, [START], files)
                self._socket.sendall(len(text).to_bytes(4, "little") + text)
                for piece in pieces:
                    self._socket.sendall(piece)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout: float | None = None) -> tuple[dict[str, Any], Content]:
        """The next frame; TimeoutError where none has begun in time."""
        self._socket.settimeout(timeout)
        files = self._start()
        self._socket.settimeout(None)
        length = int.from_bytes(self._read(4), "little")
        if length > LARGEST_HEADER:
            raise Closed("a frame's header is too long")
        header: dict[str, Any] = json.loads(self._read(length))
        size = int(header["size"])
        return header, Body(size, file=files[0]) if header["file"] else self._read(size)

    def _start(self) -> list[int]:
        """The byte that a frame begins with, and the files that came with it."""
        try:
            start, files, _, _ = socket.recv_fds(self._socket, len(START), 1)
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        if start != START:
            raise Closed("the other side has gone")
        return files

    def _read(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while len(view):
            try:
                got = self._socket.recv_into(view, min(len(view), BLOCK))
            except OSError as error:
                raise Closed(str(error)) from error
            if not got:
                raise Closed("the other side has gone")
            view = view[got:]
        return bytes(buffer)

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listener:
    """Waits for controllers in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with _short(folder) as address:
                self._socket.bind(address)
            self._path.chmod(0o600)
            self._socket.listen(4)
        except BaseException:
            self.close()
            raise

    def accept(self, timeout: float) -> Link:
        """The next controller that calls; TimeoutError where none does."""
        self._socket.settimeout(timeout)
        connection, _ = self._socket.accept()
        return Link(connection)

    def close(self) -> None:
        """Listen no more, and leave no socket behind."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def call(folder: Path) -> Link:
    """Connect to the run that listens in a folder."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(folder) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        raise Closed(f"no run listens in {folder}: {error.strerror or error}") from error
    return Link(connection)


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """An address that fits the 108 bytes of a socket's, however deep the folder is."""
    plain = str(folder / NAME)
    if len(plain.encode()) < 100:
        yield plain
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)
