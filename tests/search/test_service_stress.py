"""The search service under many clients, some of which behave badly."""

import asyncio
import gc
import json
import os
import random
import threading
import time
from contextlib import suppress

import h11
import psutil
import pytest

from gallery.gallery import verify_gallery
from tests.search.serving import PRESENCE, make_app, serving, write_gallery

CLIENTS, SECONDS = 200, 60.0
BROKEN = (
    b"\x16\x03\x01\x02\x00\x01\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"A" * 40_000,
    b"GET /api/clips/../../etc/passwd/media HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/gallery HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{",
    b"POST /api/uploads?name=a.mp4 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /api/uploads?name=..%2F..%2Fa.mp4 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /api/uploads?name=%00.mp4 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nvideo",
)  # fmt: skip


class Client:
    """One that asks, plays, sends files and nonsense, and goes away in the middle, as its numbers have it."""

    def __init__(self, port, seed, statuses, keys):
        self.port, self.draw, self.statuses, self.keys = port, random.Random(seed), statuses, keys

    async def run(self, stop):
        while time.monotonic() < stop:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                for _ in range(self.draw.randint(1, 5)):
                    await asyncio.wait_for(self.one(reader, writer), 30)
            except (ConnectionError, asyncio.IncompleteReadError, EOFError):
                pass
            finally:
                if self.draw.random() < 0.5:
                    writer.transport.abort()
                writer.close()

    async def one(self, reader, writer):
        kind = self.draw.choice(
            ["search", "search", "search", "like", "play", "upload", "broken", "half", "page", "about"]
        )
        if kind == "broken":
            writer.write(self.draw.choice(BROKEN))
            with suppress(h11.RemoteProtocolError):  # it may end the connection without a word
                await self.answer(reader, "GET")
            raise EOFError
        query = f"query {self.draw.randrange(50)}"
        body = json.dumps({"query": query, "temperature": self.draw.choice([0.01, 0.1, 1])}).encode()
        target, data = {
            "search": ("POST /api/search", body),
            "half": ("POST /api/search", body),
            "like": ("POST /api/like", json.dumps({"key": self.draw.choice(self.keys)}).encode()),
            "play": (f"GET /api/clips/{self.draw.choice(self.keys)}/media", None),
            "upload": (f"POST /api/uploads?name={self.draw.randrange(30)}.mp4", b"video %d" % self.draw.randrange(30)),
            "page": ("GET /", None),
            "about": ("GET /api/gallery", None),
        }[kind]
        head = f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += "" if data is None else f"Content-Length: {len(data)}\r\n"
        sent = head.encode() + b"\r\n" + (data or b"")
        if kind == "half" or (kind in ("upload", "play") and self.draw.random() < 0.3):
            writer.write(sent[: self.draw.randrange(len(sent))])
            await writer.drain()
            raise EOFError
        writer.write(sent)
        if kind == "play" and self.draw.random() < 0.3:
            await reader.readexactly(1000)
            raise EOFError
        await self.answer(reader, target.split()[0])

    async def answer(self, reader, method):
        ours = h11.Connection(h11.CLIENT)
        ours.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        ours.send(h11.EndOfMessage())
        body = b""
        while True:
            event = ours.next_event()
            if event is h11.NEED_DATA:
                ours.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Response):
                self.statuses.append(event.status_code)
                if event.status_code == 429:
                    assert int(dict(event.headers)[b"retry-after"]) >= 1
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise EOFError
        if self.statuses[-1] >= 400 and body.startswith(b"{"):
            assert list(json.loads(body)) == ["error"]


def resources():
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.memory_info().rss, threading.active_count()


def flood(port, keys, seconds):
    statuses = []

    async def all_of_them():
        stop = time.monotonic() + seconds
        clients = [Client(port, seed, statuses, keys) for seed in range(CLIENTS)]
        await asyncio.gather(*(client.run(stop) for client in clients))

    asyncio.run(all_of_them())
    return statuses


def came_back(before, seconds=30):
    """Whether files and memory come back to where they were."""
    stop = time.monotonic() + seconds
    while True:
        files, memory, _ = resources()
        if files <= before[0] + 5 and memory <= before[1] + 60e6:
            return True
        if time.monotonic() > stop:
            return False
        time.sleep(0.2)


@pytest.mark.slow
def test_two_hundred_clients_leave_it_as_it_was(tmp_path, caplog):
    contents = {name: name.encode() * (200_000 if name == "dog.webm" else 10) for name in PRESENCE}
    write_gallery(tmp_path, contents)
    app = make_app(tmp_path, uploads=True)
    app.archive.view()
    with serving(app) as address:
        port = int(address.rsplit(":", 1)[1].strip("/"))
        view = app.archive.view()
        keys = [view.key_of(row, str(tmp_path / "clips" / name)) for row, name in enumerate(PRESENCE)]
        flood(port, keys, SECONDS / 5)  # threads and caches come to their size
        assert came_back((10_000, 10**12, 0))
        time.sleep(1)
        before = resources()
        statuses = flood(port, keys, SECONDS)
        counts = {status: statuses.count(status) for status in sorted(set(statuses))}
        print(counts, before, resources())
        assert counts[200] > 500 and counts[202] > 5 and counts[400] > 20 and counts[413] > 5
        assert not [status for status in counts if status >= 500]
        assert came_back(before), (before, resources())
        assert app._running == {"question": 0, "stream": 0} and app.model.most_inside == 1
        stop = time.monotonic() + 30
        while app.uploads._queue.qsize() and time.monotonic() < stop:
            time.sleep(0.1)
    assert [record.getMessage() for record in caplog.records] == []
    gallery, _ = verify_gallery(tmp_path / "gallery")
    uploaded = [name for name in gallery.clip_ids if os.path.dirname(name) == str(app.archive.uploads)]
    assert len(gallery) == len(PRESENCE) + len(uploaded) and 1 <= len(uploaded) <= 31
    assert set(uploaded) <= {str(path) for path in app.archive.uploads.iterdir()}
    assert not [path for path in app.archive.uploads.iterdir() if path.suffix == ".part"]
