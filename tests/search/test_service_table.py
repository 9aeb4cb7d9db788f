"""A table of PostgreSQL is served like the folder that was pushed into it."""

import pytest
from starlette.testclient import TestClient

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.push import push
from scalar_retrieval.search.settings import open_searcher
from tests.search.serving import make_app, write_gallery

ADDRESS = "http://127.0.0.1:8000"
SRT = "1\n00:00:00,500 --> 00:00:01,500\nKarin, sit!\n"


@pytest.fixture
def both(postgres, tmp_path):
    """Clients of a folder and of its table, and the server of the table."""
    write_gallery(tmp_path)
    (tmp_path / "clips" / "dog.srt").write_text(SRT)
    (server,) = postgres(1)
    table = f"{server.new_database()}/clips"

    def update():
        push(Gallery.open(tmp_path / "gallery"), TableAddress.parse(table))

    update()
    searcher = open_searcher(table, 5)
    with (
        TestClient(make_app(tmp_path), ADDRESS) as folder,
        TestClient(make_app(tmp_path, searcher=searcher), ADDRESS) as client,
    ):
        yield folder, client, server, update


def same(folder, table, body, path="search"):
    """Whether both have the same hits; the answer of the table."""
    one, other = (client.post(f"/api/{path}", json=body).json() for client in (folder, table))
    assert [hit["key"] for hit in one["hits"]] == [hit["key"] for hit in other["hits"]]
    for mine, theirs in zip(one["hits"], other["hits"], strict=True):
        assert mine["score"] == pytest.approx(theirs["score"], abs=1e-5)
        assert mine["weights"] == pytest.approx(theirs["weights"], abs=1e-5)
        assert mine["presence"] == theirs["presence"]
    for name in ("num_clips", "num_allowed", "unknown"):
        assert one[name] == other[name]
    return other["hits"]


def test_a_table_gives_the_hits_of_its_folder_and_it_is_noticed_that_it_changes_or_is_away(both, tmp_path, caplog):
    folder, table, server, update = both
    about, known = (client.get("/api/gallery").json() for client in (table, folder))
    for name in ("num_clips", "share", "model", "query_temperature", "method"):
        assert about[name] == known[name], name
    assert not about["lists"] and not about["copies"]
    options = {"k": 2, "query_temperature": 0.01, "modalities": ["audio"], "filter": {"has": ["video"]}}
    assert same(folder, table, {"query": "a dog"} | options)
    same(folder, table, {"query": "a dog", "filter": {"paths": ["*\0*"]}})
    (hit,) = same(folder, table, {"query": 'x "karin"'})
    assert len(same(folder, table, {"key": hit["key"]}, "like")) == 4
    for address in (hit["media"], hit["words"], hit["captions"]):
        assert table.get(address).content == folder.get(address).content
    for path, body in (("search", {"query": "a", "unique": True}), ("clips", {})):
        refused = table.post(f"/api/{path}", json=body)
        assert refused.status_code == 422 and "folder" in refused.json()["error"]

    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.remove_clips([str(tmp_path / "clips" / "dog.webm")])
        writer.commit()
    update()
    assert len(same(folder, table, {"query": "a dog"})) == table.get("/api/gallery").json()["num_clips"] == 4
    server.kill()
    response = table.post("/api/search", json={"query": "a dog"})
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
    assert str(server.port) in caplog.text and str(server.port) not in response.text
    assert "earlier state" in table.get("/api/gallery").json()["problem"]
    server.start()
    same(folder, table, {"query": "a dog"})
