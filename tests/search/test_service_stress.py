"""The search service under many clients, some of which behave badly."""

import asyncio
import gc
import json
import os
import random
import tempfile
import threading
import time
import urllib.request
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
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
)  # fmt: skip


class Client:
    """One that asks, plays, sends nonsense, and goes away in the middle, as its numbers have it."""

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
            ["search", "search", "filter", "like", "play", "head", "broken", "half", "page", "about"]
        )
        if kind == "broken":
            writer.write(self.draw.choice(BROKEN))
            with suppress(h11.RemoteProtocolError):  # it may end the connection without a word
                await self.answer(reader, "GET")
            raise EOFError
        query = f"query {self.draw.randrange(50)}"
        body = json.dumps({"query": query, "temperature": self.draw.choice([0.01, 0.1, 1])}).encode()
        wanted = {"has": [self.draw.choice(["video", "audio"])], "paths": [self.draw.choice(["*", "c*", "none/**"])]}
        target, data = {
            "filter": ("POST /api/search", json.dumps({"query": query, "filter": wanted, "per_file": True}).encode()),
            "head": (f"HEAD /api/clips/{self.draw.choice(self.keys)}/media", None),
            "search": ("POST /api/search", body),
            "half": ("POST /api/search", body),
            "like": ("POST /api/like", json.dumps({"key": self.draw.choice(self.keys)}).encode()),
            "play": (f"GET /api/clips/{self.draw.choice(self.keys)}/media", None),
            "page": ("GET /", None),
            "about": ("GET /api/gallery", None),
        }[kind]
        head = f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += "" if data is None else f"Content-Length: {len(data)}\r\n"
        sent = head.encode() + b"\r\n" + (data or b"")
        if kind == "half" or (kind == "play" and self.draw.random() < 0.3):
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
        body, status = b"", None
        while True:
            event = ours.next_event()
            if event is h11.NEED_DATA:
                ours.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                self.statuses.append(status)
                if status == 429:
                    assert int(dict(event.headers)[b"retry-after"]) >= 1
                    await asyncio.sleep(self.draw.choice([0, 0.5]))  # some heed it
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise EOFError
        if status >= 400 and body.startswith(b"{"):
            assert list(json.loads(body)) == ["error"]


def resources():
    gc.collect()
    process = psutil.Process()
    # The last three states of the gallery are mapped, in however many parts they are.
    return (
        len([name for name in opened() if "/gallery/" not in name]),
        process.memory_info().rss,
        threading.active_count(),
    )


def opened():
    """What the process has open."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(link) for link in links if os.path.islink(link))


def flood(port, keys, seconds):
    statuses = []

    async def all_of_them():
        stop = time.monotonic() + seconds
        clients = [Client(port, seed, statuses, keys) for seed in range(CLIENTS)]
        await asyncio.gather(*(client.run(stop) for client in clients))

    asyncio.run(all_of_them())
    return statuses


def came_back(before, seconds=90):  # who is silent is left after 30, who does not read after 60
    """Whether files, memory and threads come back to where they were."""
    stop = time.monotonic() + seconds
    while True:
        files, memory, threads = resources()
        if files <= before[0] + 5 and memory <= before[1] + 60e6 and threads <= before[2] + 1:
            return True
        if time.monotonic() > stop:
            return False
        time.sleep(0.2)


@pytest.mark.slow
def test_two_hundred_clients_leave_it_as_it_was(tmp_path, caplog, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    contents = {name: name.encode() * (200_000 if name == "dog.webm" else 10) for name in PRESENCE}
    write_gallery(tmp_path, contents)
    app = make_app(tmp_path)
    with serving(app) as address:
        port = int(address.rsplit(":", 1)[1].strip("/"))
        body = json.dumps({"query": "a", "k": 100}).encode()
        asked = urllib.request.Request(f"{address}api/search", body, {"Content-Type": "application/json"})
        keys = [hit["key"] for hit in json.load(urllib.request.urlopen(asked))["hits"]]
        flood(port, keys, SECONDS / 5)  # threads and caches come to their size
        assert came_back((10_000, 10**12, 10_000))
        time.sleep(1)
        before = resources()
        statuses = flood(port, keys, SECONDS)
        counts = {status: statuses.count(status) for status in sorted(set(statuses))}
        print(counts, before, resources())
        assert counts[200] > 500 and counts[400] > 20 and counts[413] > 5
        assert not [status for status in counts if status >= 500]
        assert came_back(before), f"{before} {resources()} {opened()}"
        assert app.num_running == 0 and app.model.most_inside == 1
    assert [record.getMessage() for record in caplog.records] == []
    assert len(verify_gallery(tmp_path / "gallery")[0]) == len(PRESENCE)
    assert not list((tmp_path / "temporary").iterdir())
