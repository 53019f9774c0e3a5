"""The page without a browser: its files, what they may load, who may ask for the graph, and what the graph says."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256
from importlib.resources import files

import httpx2
import pytest
from omni_serve_clients import http_client

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.page.routes import OPEN_PATHS, contents

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a long secret of mine"
KINDS = {"": "text/html", "html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


async def test_every_file_is_served_without_a_key_and_with_its_type(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}))
    assert {"/", "/page/app.js", "/page/style.css", "/page/player-worklet.js"} <= OPEN_PATHS
    async with http_client(app) as http:
        for path in OPEN_PATHS:
            answer = await http.get(path)
            kind = path.rpartition("/")[2].rpartition(".")[2]
            assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, KINDS[kind])
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/page/../settings.py")).status_code == 401
        answer = await http.get("/page/nothing.js", headers={"authorization": f"Bearer {SECRET}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_files_refer_to_each_other_and_to_nothing_elsewhere() -> None:
    everything = {name: data.decode() for name, (data, _) in contents().items()}
    folder = files("omni_serve.page").joinpath("static")
    assert set(everything) == {each.name for each in folder.iterdir()}
    used = {"index.html", "docs.html"}
    vendored = everything["marked.esm.js"]
    noted = files("omni_serve.page").joinpath("THIRD-PARTY.md").read_text()
    assert sha256(vendored.encode()).hexdigest() in noted
    assert "marked v18.2.1" in vendored
    for name, text in everything.items():
        if name == "marked.esm.js":
            continue
        addresses = re.findall(r"(?:https?|wss?)://[^\s\"'`]+", text)
        assert [each for each in addresses if not each.startswith("http://www.w3.org/")] == [], name
        assert not re.search(r"\bon[a-z]+=|style=|javascript:|@import|//cdn", text), name
        used |= set(re.findall(r"[\"'](?:page/|\./)([\w.-]+)[\"']", text))
    assert used == set(everything)
    assert not [name for name in ("index.html", "docs.html") if "<script>" in everything[name]]
    assert not [
        name for name, text in everything.items() if re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(", text)
    ]


async def test_the_page_is_small_and_compressed(pipe: AsyncPipe) -> None:
    everything = [name for name in contents() if not name.startswith("docs.")]
    assert sum(len(gzip.compress(contents()[name][0])) for name in everything) < 75_000
    async with http_client(create_app(pipe, Settings())) as http:
        plain = await http.get("/page/app.js", headers={"accept-encoding": "identity"})
        packed = await http.get("/page/app.js", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert packed.content == plain.content == contents()["app.js"][0]
        assert int(packed.headers["content-length"]) < len(plain.content) / 2
        assert packed.headers["etag"] != plain.headers["etag"]


async def test_the_graph_needs_a_key(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": SECRET}))
    async with http_client(app) as http:
        assert (await http.get("/v1/omni/pipeline")).status_code == 401
        answer = await http.get("/v1/omni/pipeline", headers={"authorization": f"Bearer {SECRET}"})
        assert answer.status_code == 200


async def test_the_graph_has_stages_edges_and_counters(http: httpx2.AsyncClient) -> None:
    before = (await http.get("/v1/omni/pipeline")).json()
    body = {"model": "tones", "messages": [{"role": "user", "content": "one two"}], "modalities": ["text", "audio"]}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    graph = (await http.get("/v1/omni/pipeline")).json()
    assert (graph["pipeline"], graph["requests"]["running"]) == ("tones", 0)
    assert graph["time"] > before["time"]
    stages = {each["name"]: each for each in graph["stages"]}
    assert list(stages) == ["understand", "write", "speak"]
    assert (stages["write"]["role"], stages["write"]["state"], stages["write"]["terminal"]) == ("text", "ready", True)
    for was, each in zip(before["stages"], graph["stages"], strict=True):
        assert each["counters"]["completed"] == was["counters"]["completed"] + 1
        assert each["counters"]["latency.p50"] > 0
    edges = {(each["from"], each["to"]): each for each in graph["edges"]}
    assert set(edges) == {("understand", "write"), ("understand", "speak")}
    earlier = {(each["from"], each["to"]): each for each in before["edges"]}
    for name, edge in edges.items():
        assert edge["messages"] > earlier[name]["messages"]
        assert not edge["stream"]


async def test_a_server_without_the_page(pipe: AsyncPipe) -> None:
    async with http_client(create_app(pipe, Settings(page=False))) as http:
        for path in ("/", "/page/app.js", "/v1/omni/pipeline"):
            assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("page", [True, False])
async def test_the_description_is_shown_by_a_page_of_our_own(pipe: AsyncPipe, page: bool) -> None:
    async with http_client(create_app(pipe, Settings(keys={"mine": SECRET}, page=page))) as http:
        shown = await http.get("/docs")
        assert "default-src 'none'; script-src 'self'" in shown.headers["content-security-policy"]
        loaded = re.findall(r'(?:src|href)="([^"]+)"', shown.text)
        assert set(loaded) == {"page/docs.js", "page/docs.css", "page/icon.svg"}
        for path in (*loaded, "page/api.js"):
            assert (await http.get(f"/{path}")).status_code == 200
        assert (await http.get("/openapi.json")).status_code == 401
        assert (await http.get("/openapi.json", headers={"authorization": f"Bearer {SECRET}"})).status_code == 200


async def test_a_server_without_the_description(pipe: AsyncPipe) -> None:
    async with http_client(create_app(pipe, Settings(docs=False))) as http:
        for path in ("/docs", "/openapi.json", "/docs/oauth2-redirect"):
            assert (await http.get(path)).status_code == 404
