"""The search service under many clients, some of which behave badly."""

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

import h11
import psutil
import pytest

from gallery.gallery import verify_gallery
from tests.media_corpus import media
from tests.search.serving import PRESENCE, make_app, serving, vector, write_gallery

CHROMIUM = Path("/usr/bin/chromium")
CLIENTS, SECONDS = 200, 60.0
KINDS = ("search", "play", "upload")
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
        self.sent = []

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
            [
                "search",
                "search",
                "filter",
                "like",
                "play",
                "head",
                "upload",
                "remove",
                "broken",
                "half",
                "page",
                "about",
            ]
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
            "remove": (f"DELETE /api/uploads/{self.draw.choice(self.sent or ['none'])}", None),
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
        elif status == 202:
            self.sent.append(json.loads(body)["id"])


class Killer(threading.Thread):
    """Starts browsers one after another, and kills each in the middle of a search, a film, or a file that it sends."""

    def __init__(self, address, place, stop):
        super().__init__(name="killer")
        self.address, self.place, self.stop, self.killed, self.failed = address, place, stop, Counter(), []

    def run(self):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            for number in count():
                if time.monotonic() > self.stop and (len(self.killed) == 3 or number > 6):
                    return
                browsers = {kind: self.start_browser(self.place / f"{kind}{number}") for kind in KINDS}
                for kind, browser in browsers.items():
                    try:
                        self.use(driver, self.place / f"{kind}{number}", kind)
                        self.killed[kind] += 1
                    except Exception as error:  # it is slow where everything else is
                        self.failed.append(f"{kind}: {error}".partition("\n")[0])
                    finally:
                        os.killpg(browser.pid, signal.SIGKILL)
                        browser.wait()

    @staticmethod
    def start_browser(folder):
        options = ["--headless", "--no-sandbox", "--no-zygote", "--remote-debugging-port=0"]
        return subprocess.Popen(
            [CHROMIUM, *options, f"--user-data-dir={folder}", "about:blank"],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def use(self, driver, folder, kind):
        """Leave it while the service works for it."""
        port, begun = folder / "DevToolsActivePort", time.monotonic()
        while not (port.is_file() and port.read_text().count("\n")):
            assert time.monotonic() < begun + 20
            time.sleep(0.02)
        browser = driver.chromium.connect_over_cdp(f"http://127.0.0.1:{port.read_text().split()[0]}")
        page = browser.contexts[0].pages[0]
        page.set_default_timeout(40_000)
        page.goto(self.address)
        page.locator("#search:not([hidden])").wait_for()
        slow = {"offline": False, "latency": 0, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)
        if kind == "upload":
            page.set_input_files("#file", {"name": "long.mp4", "mimeType": "video/mp4", "buffer": b"video" * 100_000})
            while not page.evaluate("document.querySelector('progress')?.value > 0"):
                assert time.monotonic() < begun + 40
                page.wait_for_timeout(5)
            return
        page.locator("#query").fill("a film")
        page.keyboard.press("Enter")
        if kind == "play":
            page.locator("video").first.wait_for()
            page.evaluate(
                "(() => { const all = [...document.querySelectorAll('video')];"
                "for (const one of all) { one.muted = true; one.preload = 'auto'; one.play().catch(() => {}); } })()"
            )
            page.wait_for_timeout(300)


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
    pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.is_file():
        pytest.skip(f"no browser at {CHROMIUM}")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    contents = {name: name.encode() * (200_000 if name == "dog.webm" else 10) for name in PRESENCE}
    contents["cat.webm"] = media(
        "webm", "libvpx", "libopus", frames=150, seconds=15, size=(320, 240), sampling_rate=48_000
    )
    write_gallery(tmp_path, contents)
    app = make_app(tmp_path, uploads=True, most_bytes=1_000_000)
    app.archive.source.view()
    with serving(app) as address:
        port = int(address.rsplit(":", 1)[1].strip("/"))
        view = app.archive.source.view()
        keys = [view.key_of(hit) for hit in view.search(queries=vector("dog")[None], k=len(PRESENCE))]
        flood(port, keys, SECONDS / 5)  # threads and caches come to their size
        assert came_back((10_000, 10**12, 10_000))
        time.sleep(1)
        before = resources()
        killer = Killer(address, tmp_path, time.monotonic() + SECONDS)
        killer.start()
        statuses = flood(port, keys, SECONDS)
        killer.join(120)
        counts = {status: statuses.count(status) for status in sorted(set(statuses))}
        print(counts, dict(killer.killed), killer.failed, before, resources())
        assert not killer.is_alive() and set(killer.killed) == set(KINDS)
        assert counts[200] > 500 and counts[202] > 5 and counts[400] > 20 and counts[413] > 5
        assert not [status for status in counts if status >= 500]
        stop = time.monotonic() + 120
        while any(upload.state in ("waiting", "embedding", "removing") for upload in list(app.uploads._sent.values())):
            assert time.monotonic() < stop
            time.sleep(0.1)
        assert came_back(before), f"{before} {resources()} {opened()}"
        assert app._running == {"question": 0, "stream": 0} and app.model.most_inside == 1
    assert [record.getMessage() for record in caplog.records] == []
    gallery, _ = verify_gallery(tmp_path / "gallery")
    uploaded = [name for name in gallery.clip_ids if os.path.dirname(name) == str(app.archive.source.uploads)]
    kept = [path for path in app.archive.source.uploads.iterdir() if path.suffix == ".mp4"]
    assert len(gallery) == len(PRESENCE) + len(uploaded) and len(uploaded) <= 31
    assert set(uploaded) <= set(map(str, kept))
    assert not [path for path in app.archive.source.uploads.iterdir() if path.suffix == ".part"]
    assert not list((tmp_path / "temporary").iterdir())
