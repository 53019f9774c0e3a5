"""A stand-in for the Hugging Face hub on the loopback interface: as much of its protocol as ``huggingface_hub`` needs to read models.

Repositories are folders; every byte that leaves is counted.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PIECE = 2**20


class Hub:
    """The served repositories, and what was asked of them.

    Attributes:
        repositories: folders by ``owner/name``. gated: those that need the token. requests: method and path of each request.
        seconds_per_piece: how long each MiB takes.
        sent: bytes of bodies. cut_after: bytes of a body after which the connection is closed, once.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: dict[str, str] = {}
        self.requests: list[str] = []
        self.sent = 0
        self.seconds_per_piece = 0.0
        self.cut_after: int | None = None
        self.endpoint = ""

    @staticmethod
    def commit(repository: str, revision: str) -> str:
        """Return the commit of a branch or tag; a commit is its own."""
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            return revision
        return hashlib.sha1(f"{repository} {revision}".encode()).hexdigest()

    def weights_sent(self) -> bool:
        """Return True if a safetensors file was asked for as a whole."""
        return any(each.startswith("GET whole") and each.endswith(".safetensors") for each in self.requests)


@contextmanager
def serve() -> Iterator[Hub]:
    """Serve until the end of the block."""
    hub = Hub()

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        whole = "whole" if "Range" not in self.headers else "part"
        self.served.requests.append(f"{self.command} {whole} {path}")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        if match is None:
            return self._fail(404, "EntryNotFound", body)
        folder = self.served.repositories.get(match[1])
        if folder is None:
            return self._fail(401, "RepoNotFound", body)
        token = self.served.gated.get(match[1])
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            return self._fail(403, "GatedRepo", body)
        if api is not None:
            commit = Hub.commit(match[1], match[3])
            names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
            if match[2] == "revision":
                if match[3] == "gone":
                    return self._fail(404, "RevisionNotFound", body)
                return self._json(
                    {"id": match[1], "sha": commit, "siblings": [{"rfilename": each} for each in names]}, body
                )
            entries = [
                {"type": "file", "path": each, "size": (folder / each).stat().st_size, "oid": _oid(folder / each)}
                for each in names
            ]
            return self._json(entries, body)
        if match[2] == "gone":
            return self._fail(404, "RevisionNotFound", body)
        path_on_disk = folder / match[3]
        if not path_on_disk.is_file():
            return self._fail(404, "EntryNotFound", body)
        return self._file(path_on_disk, Hub.commit(match[1], match[2]), body)

    def _file(self, path: Path, commit: str, body: bool) -> None:
        size = path.stat().st_size
        first, last, status = 0, size - 1, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is not None:
            first, status = int(wanted[1]), 206
            last = min(int(wanted[2]) if wanted[2] else last, last)
        self.send_response(status)
        for name, value in {
            "X-Repo-Commit": commit,
            "ETag": f'"{_oid(path)}"',
            "Accept-Ranges": "bytes",
            "Content-Length": str(last - first + 1),
            **({"Content-Range": f"bytes {first}-{last}/{size}"} if status == 206 else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        with path.open("rb") as file:
            file.seek(first)
            left, cut = last - first + 1, self.served.cut_after
            if cut is not None and cut < left:
                left, self.served.cut_after, self.close_connection = cut, None, True
            while left:
                piece = file.read(min(left, PIECE))
                time.sleep(self.served.seconds_per_piece)
                try:
                    self.wfile.write(piece)
                except OSError:  # the client has gone
                    self.close_connection = True
                    return
                self.served.sent += len(piece)
                left -= len(piece)

    def _json(self, document: object, body: bool) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body)

    def _fail(self, status: int, code: str, body: bool) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code}, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)
            self.served.sent += len(content)


def _oid(path: Path) -> str:
    """Return a name for a file's content; not its hash, which would read it."""
    return hashlib.sha1(f"{path} {path.stat().st_size}".encode()).hexdigest()
