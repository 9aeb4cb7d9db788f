"""What assistants ask the service by the Model Context Protocol."""

import asyncio
import json

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.testclient import TestClient

from scalar_retrieval.search.service import app as app_module
from scalar_retrieval.search.service.archive import Archive
from tests.search.serving import SECRET, make_app, serving, write_gallery

ADDRESS = "http://127.0.0.1:8000"
SRT = "1\n00:00:00,500 --> 00:00:01,500\nKarin, sit!\n\n2\n00:00:03,000 --> 00:00:04,000\nGood dog.\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.service.routes._WORDS_SECONDS", 20)
    write_gallery(tmp_path)
    (tmp_path / "clips" / "dog.srt").write_text(SRT)
    return tmp_path


def asking(place, *calls, mode="auto"):
    """What an assistant is told that calls tools in turn, each call `(tool, arguments)`."""

    async def session(address):
        async with httpx2.AsyncClient() as http:
            async with Client(streamable_http_client(f"{address}mcp", http_client=http), mode=mode) as client:
                tools = (await client.list_tools()).tools
                assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
                return [await client.call_tool(tool, arguments) for tool, arguments in calls]

    with serving(make_app(place)) as address:
        return asyncio.run(session(address))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_assistant_searches_and_looks_into_what_it_found(place, mode):
    asked = {"query": 'x "good dog"', "modalities": ["audio"]}
    with TestClient(make_app(place), ADDRESS) as http:
        (known,) = http.post("/api/search", json=asked).json()["hits"]
    results = asking(
        place,
        ("search", asked | {"filters": {"has": ["subtitle"]}}),
        ("get_moment", {"key": known["key"]}),
        ("get_moment", {"key": known["key"], "query": "a dog"}),
        mode=mode,
    )
    for result in results:
        assert json.loads(result.content[0].text) == result.structured_content
    found, plain, _ = (result.structured_content for result in results)
    (hit,) = found["hits"]
    assert (hit["name"], hit["weights"]) == ("dog.webm", known["weights"])
    assert hit["said"] == [{"start": 3.0, "stop": 4.0, "text": "Good dog."}]
    assert [line["text"] for line in plain["said"]] == ["Karin, sit!", "Good dog."] and plain["num_words"] == 2


def test_what_is_wrong_is_reported_in_a_sentence(place):
    results = asking(
        place,
        ("search", {"query": "a dog", "k": 0, "colour": "red"}),
        ("search", {"query": "a dog", "filters": {"min_duration": 9, "max_duration": 2}}),
        ("search", {"query": '""'}),
        ("search", {"query": "a dog", "modalities": ["smell"]}),
        ("get_moment", {"key": "0" * 16}),
        ("remove", {}),
    )
    assert all(result.is_error for result in results)
    many, swapped, blank, modality, unknown, tool = (result.content[0].text for result in results)
    assert "`k`: " in many and "`colour`: " in many and "Swap them?" in swapped
    assert "`query`" in blank and "('video', 'audio', 'subtitle')" in modality
    assert unknown.startswith("There is no such clip") and tool.startswith("There is no tool 'remove'")


def test_a_fault_is_reported_without_the_inside_of_the_service(place, monkeypatch, caplog):
    monkeypatch.setattr(Archive, "search", lambda *_: {}["secret"])
    (result,) = asking(place, ("search", {"query": "a dog"}))
    assert result.content[0].text == "Internal error of the service; see its log." and "secret" in caplog.text


def test_an_assistant_needs_the_token_and_the_name_of_this_machine(place):
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with TestClient(make_app(place, secret=SECRET), ADDRESS) as client:
        client.headers["accept"] = "application/json, text/event-stream"
        assert client.post("/mcp", json=request).status_code == 401
        client.headers["authorization"] = f"Bearer {SECRET}"
        answer = client.post("/mcp", json=request)
        assert {tool["name"] for tool in answer.json()["result"]["tools"]} == {"search", "get_moment"}
        assert "mcp-session-id" not in answer.headers
        for refused, code in (({"host": "evil.example"}, 400), ({"origin": "http://evil.example"}, 403)):
            assert client.post("/mcp", json=request, headers=refused).status_code == code
        assert client.get("/mcp").status_code == 405  # nothing is kept to listen to


def test_without_the_package_the_answer_says_what_to_install(place, monkeypatch):
    monkeypatch.setattr(app_module, "find_spec", lambda name: None)
    with TestClient(make_app(place), ADDRESS) as client:
        answer = client.post("/mcp", json={})
    assert answer.status_code == 404 and 'pip install "scalar-retrieval[mcp]"' in answer.json()["error"]
