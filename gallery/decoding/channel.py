"""Communication between a decoder and the program that uses it: over pipes, in JSON and bytes."""

import json
import struct
from typing import Any, BinaryIO


class Channel:
    """Messages to and from the program: each is a JSON object, optionally followed by bytes."""

    def __init__(self, source: BinaryIO, sink: BinaryIO):
        self.source, self.sink = source, sink

    def receive(self) -> dict[str, Any] | None:
        """The next message, or `None` at the end."""
        length = self._read(4)
        return json.loads(self._read(*struct.unpack(">I", length))) if length else None

    def _read(self, length: int) -> bytes:
        parts = b""
        while len(parts) < length and (part := self.source.read(length - len(parts))):
            parts += part
        return parts

    def send(self, kind: str, payload: Any = b"", **content: Any) -> None:
        """Send a message, followed by the bytes of an array."""
        payload = memoryview(payload).cast("B")
        header = json.dumps(content | {"kind": kind, "size": len(payload)}).encode()
        self._write(struct.pack(">I", len(header)) + header)
        self._write(payload)

    def _write(self, data: Any) -> None:
        data = memoryview(data)
        while data:
            data = data[self.sink.write(data) :]

    def ask(self, kind: str, **content: Any) -> dict[str, Any]:
        """Send a message and wait for the reply."""
        self.send(kind, **content)
        answer = self.receive()
        if answer is None:
            raise SystemExit  # the other side is gone
        return answer


__all__ = ["Channel"]
