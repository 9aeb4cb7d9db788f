"""What assistants ask the service by the Model Context Protocol."""

import asyncio
import json
import sys

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.testclient import TestClient

from scalar_retrieval.gallery.store.windows import clip_id_of
from scalar_retrieval.search.service import app as app_module
from tests.search.serving import PRESENCE, SECRET, make_app, serving, write_gallery

ADDRESS = "http://127.0.0.1:8000"
SRT = "1\n00:00:00,500 --> 00:00:01,500\nKarin, sit!\n\n2\n00:00:03,000 --> 00:00:04,000\nGood dog.\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.service.routes._WORDS_SECONDS", 20)
    names = [*PRESENCE, clip_id_of("talk.webm", (0, 2)), clip_id_of("talk.webm", (2, None))]
    write_gallery(tmp_path, dict.fromkeys(names, b"x"), segment=2)
    (tmp_path / "clips" / "dog.srt").write_text(SRT)
    return tmp_path


def asking(address, ask, token=None, mode="auto"):
    """Have an assistant ask, as `ask(client)`."""

    async def session():
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers) as http:
            async with Client(streamable_http_client(f"{address}mcp", http_client=http), mode=mode) as client:
                return await ask(client)

    return asyncio.run(session())


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        return result.content[0].text
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_assistant_searches_and_looks_into_what_it_found(place, mode):
    app = make_app(place)

    async def ask(client):
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"search", "get_moment"}
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
        found = await call(client, "search", query='x "good dog"', filters={"has": ["subtitle"]}, modalities=["audio"])
        key = found["hits"][0]["key"]
        asked = await call(client, "get_moment", key=key, query="a dog")
        return found, asked, await call(client, "get_moment", key=key)

    with serving(app) as address, TestClient(make_app(place), address) as http:
        found, asked, plain = asking(address, ask, mode=mode)
        known = http.post("/api/search", json={"query": 'x "good dog"', "modalities": ["audio"]}).json()
    assert [hit["name"] for hit in found["hits"]] == [hit["name"] for hit in known["hits"]] == ["dog.webm"]
    assert found["hits"][0]["weights"] == known["hits"][0]["weights"]
    assert found["hits"][0]["said"] == [{"start": 3.0, "stop": 4.0, "text": "Good dog."}]
    assert asked["name"] == plain["name"] == "dog.webm"
    assert [line["text"] for line in plain["said"]] == ["Karin, sit!", "Good dog."] and plain["num_words"] == 2


def test_what_is_wrong_is_reported_in_a_sentence(place):
    async def ask(client):
        return [
            await call(client, "search", query="a dog", k=0, colour="red"),
            await call(client, "search", query="a dog", filters={"min_duration": 9, "max_duration": 2}),
            await call(client, "search", query='""'),
            await call(client, "search", query="a dog", modalities=["smell"]),
            await call(client, "get_moment", key="0" * 16),
            await call(client, "remove"),
        ]

    with serving(make_app(place)) as address:
        many, swapped, blank, modality, unknown, tool = asking(address, ask)
    assert "`k`: " in many and "`colour`: " in many and "Swap them?" in swapped
    assert blank == "`query`: type what you are looking for."
    assert modality == "`modalities` must name some of ('video', 'audio', 'subtitle'), got ('smell',)."
    assert unknown.startswith("There is no such clip") and tool.startswith("There is no tool 'remove'")


def test_a_fault_is_reported_without_the_inside_of_the_service(place, monkeypatch, caplog):
    app = make_app(place)
    monkeypatch.setattr(app.archive, "search", lambda *_: {}["secret"])
    with serving(app) as address:
        reported = asking(address, lambda client: call(client, "search", query="a dog"))
    assert reported == "Internal error of the service; see its log." and "secret" in caplog.text


def test_an_assistant_needs_the_token_and_the_name_of_this_machine(place):
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    with TestClient(make_app(place, secret=SECRET), ADDRESS) as client:
        assert client.post("/mcp", json=request, headers=headers).status_code == 401
        headers["authorization"] = f"Bearer {SECRET}"
        answer = client.post("/mcp", json=request, headers=headers)
        assert {tool["name"] for tool in answer.json()["result"]["tools"]} == {"search", "get_moment"}
        assert answer.headers["content-type"] == "application/json" and "mcp-session-id" not in answer.headers
        for refused, code in (({"host": "evil.example"}, 400), ({"origin": "http://evil.example"}, 403)):
            assert client.post("/mcp", json=request, headers=headers | refused).status_code == code
        assert client.get("/mcp", headers=headers).status_code == 405  # nothing is kept to listen to


def test_without_the_package_the_answer_says_what_to_install(place, monkeypatch):
    monkeypatch.setattr(app_module, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "scalar_retrieval.search.service.assistants", None)
    with TestClient(make_app(place), ADDRESS) as client:
        answer = client.post("/mcp", json={})
        assert answer.status_code == 404 and 'pip install "scalar-retrieval[mcp]"' in answer.json()["error"]
        assert client.post("/api/search", json={"query": "a dog"}).status_code == 200
