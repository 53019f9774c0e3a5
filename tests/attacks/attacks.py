"""The attacks. Each takes a :class:`harness.Server` and returns, in short, what the server answered."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import signal
import socket
import struct
import wave
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import aiohttp
import websockets
from harness import PATIENCE, QUESTION, Server
from PIL import Image

Attack = Callable[[Server], Awaitable[str]]
ATTACKS: dict[str, Attack] = {}

CHAT, SPEECH, RESPONSES = "/v1/chat/completions", "/v1/audio/speech", "/v1/responses"
WRITE_DOWN = "/v1/audio/transcriptions"
MB = 1_000_000
BODY = 50 * MB
"""A body a little under the limit of the server (body_mib)."""


def attack(name: str) -> Callable[[Attack], Attack]:
    """Register an attack by the name that the table shows."""

    def kept(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return kept


async def post(server: Server, path: str, body: Any, key: str = "alice", **more: Any) -> str:
    """Post a body, and return the status with the code of the error."""
    headers = {**server.headers(key), "content-type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession(server.url, timeout=PATIENCE, headers=headers) as http:
        try:
            async with http.post(path, data=data, **more) as answer:
                return _short(answer.status, await answer.read())
        except aiohttp.ClientError as error:  # a body that is refused early is not read to its end
            return type(error).__name__


def _short(status: int, body: bytes) -> str:
    if len(body) > 20_000 and status >= 400:
        raise AssertionError(f"an error of {len(body)} bytes: {body[:80]!r}")
    if status >= 500 and status != 503:
        raise AssertionError(f"status {status}: {body[:300]!r}")
    try:
        return f"{status} {json.loads(body)['error']['code'] or ''}".strip()
    except (ValueError, KeyError, TypeError):
        return str(status)


def counted(found: Iterable[str]) -> str:
    """Return how often each answer came."""
    return ", ".join(f"{number} x {each}" if number > 1 else each for each, number in Counter(found).items())


# --- bodies ------------------------------------------------------------------------------------------------------------------------
def _json(prefix: str, unit: str, size: int, end: str) -> bytes:
    return (prefix + ",".join([unit] * (size // (len(unit) + 1))) + end).encode()


BODIES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "responses, 1.5 million empty objects": (RESPONSES, lambda: _json('{"model":"demo","input":[', "{}", 4 * MB, "]}")),
    "responses, 3 million empty objects": (RESPONSES, lambda: _json('{"model":"demo","input":[', "{}", 9 * MB, "]}")),
    "chat, an unknown key of empty lists, 30 MB": (
        CHAT,
        lambda: _json('{"model":"demo","messages":[],"zzz":[', "[]", 30 * MB, "]}"),
    ),
    "chat, NaN 16 million times": (
        CHAT,
        lambda: b'{"model":"demo","messages":[{"role":"user","content":"' + b"NaN" * (16 * MB) + b'"}]}',
    ),
    "chat, empty messages, 50 MB": (CHAT, lambda: _json('{"model":"demo","messages":[', "{}", BODY, "]}")),
    "chat, 1.5 million unknown keys": (
        CHAT,
        lambda: ('{"model":"demo",' + ",".join(f'"k{n}":1' for n in range(1_500_000)) + "}").encode(),
    ),
    "chat, 900,000 parts": (
        CHAT,
        lambda: _json(
            '{"model":"demo","messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', 24 * MB, "]}]}"
        ),
    ),
    "chat, a model's name of 10 MB": (CHAT, lambda: json.dumps({**QUESTION, "model": "m" * 10 * MB}).encode()),
    "chat, a key of 10 MB": (CHAT, lambda: json.dumps({**QUESTION, "k" * 10 * MB: 1}).encode()),
    "speech, a voice's name of 10 MB": (
        SPEECH,
        lambda: json.dumps({"model": "demo", "input": "Hi.", "voice": "v" * 10 * MB}).encode(),
    ),
    "chat, a million entries of logit_bias": (
        CHAT,
        lambda: json.dumps({**QUESTION, "logit_bias": {str(n): 1 for n in range(1_000_000)}}).encode(),
    ),
    "chat, a number of 50 million digits": (CHAT, lambda: b'{"model":"demo","seed":' + b"9" * BODY + b"}"),
    "chat, numbers of 4,000 digits": (CHAT, lambda: _json('{"model":"demo","zzz":[', "9" * 4000, 30 * MB, "]}")),
    "chat, lists nested 30 million deep": (CHAT, lambda: b'{"model":"demo","zzz":' + b"[" * 30 * MB),
    "chat, objects nested a million deep": (CHAT, lambda: b'{"a":' * MB),
    "chat, escapes, 50 MB": (
        CHAT,
        lambda: b'{"model":"demo","messages":[{"role":"user","content":"' + b"\\u0041" * (8 * MB) + b'"}]}',
    ),
    "chat, invalid UTF-8, 30 MB": (CHAT, lambda: b'{"model":"demo","messages":"' + b"\xff" * 30 * MB + b'"}'),
    "chat, stop of 4 x 1 MB": (CHAT, lambda: json.dumps({**QUESTION, "stop": ["s" * MB] * 4}).encode()),
    "chat, a text of a million characters": (
        CHAT,
        lambda: json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x y " * 250_000}]}).encode(),
    ),
    "speech, a text of 50 MB": (SPEECH, lambda: json.dumps({"model": "demo", "input": "a b " * 12 * MB}).encode()),
}


def _body(path: str, made: Callable[[], bytes]) -> Attack:
    async def send(server: Server) -> str:
        body = await asyncio.to_thread(made)
        return counted([await post(server, path, body) for _ in range(2)])

    return send


for _name, (_path, _made) in BODIES.items():
    ATTACKS[_name] = _body(_path, _made)


# --- media -------------------------------------------------------------------------------------------------------------------------
def _png(width: int, height: int, *, claimed: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG", compress_level=9)
    made = file.getvalue()
    if claimed is not None:
        head = b"IHDR" + struct.pack(">II", *claimed) + made[24:29]
        made = made[:12] + head + struct.pack(">I", zlib.crc32(head)) + made[33:]
    return made


def _url(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _seen(pictures: Iterable[bytes], text: str = "What colour is it?") -> dict[str, Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": _url(each, "image/png")}} for each in pictures]
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
        "max_tokens": 8,
    }


def _images(number: int, size: int, **more: Any) -> Attack:
    async def send(server: Server) -> str:
        body = await asyncio.to_thread(lambda: json.dumps(_seen([_png(size, size, **more)] * number)).encode())
        return counted(await asyncio.gather(*(post(server, CHAT, body) for _ in range(2))))

    return send


for _number, _size in ((4, 7000), (8, 7000), (64, 7000), (64, 1)):
    ATTACKS[f"{_number} pictures of {_size} x {_size}, twice"] = _images(_number, _size)
for _claimed in ((100_000, 100_000), (2**31 - 1, 1), (1, 49_000_000)):
    ATTACKS[f"a picture that claims {_claimed[0]} x {_claimed[1]}"] = _images(1, 16, claimed=_claimed)


def _wav(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(bytes(int(seconds * rate) * channels * 2))
    return file.getvalue()


def _heard(sounds: Iterable[bytes]) -> bytes:
    parts: list[Any] = [{"type": "audio_url", "audio_url": {"url": _url(each, "audio/wav")}} for each in sounds]
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": parts}], "max_tokens": 8}).encode()


@attack("64 recordings of 10 s, 8 times at once")
async def recordings(server: Server) -> str:
    body = await asyncio.to_thread(lambda: _heard([_wav(10)] * 64))
    return counted(await asyncio.gather(*(post(server, CHAT, body) for _ in range(8))))


@attack("recordings of 590 s, of 1 Hz and of 64 channels")
async def odd_recordings(server: Server) -> str:
    sounds = [_wav(590), _wav(3600, rate=1), _wav(590, rate=8000, channels=3), _wav(20, channels=64)]
    return counted([await post(server, CHAT, await asyncio.to_thread(_heard, [each])) for each in sounds])


# --- connections -------------------------------------------------------------------------------------------------------------------
async def _raw(server: Server, data: bytes, *, seconds: float = 20.0) -> bytes:
    """Send bytes, and return all that comes back until the server closes."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except OSError:
        return b""
    got = b""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(seconds):
            while piece := await reader.read(65536):
                got += piece
    writer.close()
    return got


def _head(server: Server, length: int, key: str | None = "alice") -> bytes:
    auth = f"Authorization: Bearer {server.keys[key]}\r\n" if key else ""
    return (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{auth}Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@attack("24 bodies of which 49 of 50 MB come")
async def stalled(server: Server) -> str:
    data = _head(server, BODY) + b'{"model":"' + b"x" * (BODY - MB)
    got = await asyncio.gather(*(_raw(server, data, seconds=30) for _ in range(24)))
    return counted(each[9:12].decode() or "cut" for each in got)


@attack("200 bodies of a byte a second, without a key")
async def dripping(server: Server) -> str:
    async def drip() -> str:
        got = b""
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(_head(server, MB, key=None))
            async with asyncio.timeout(40):
                while not reader.at_eof():
                    writer.write(b"x")
                    with contextlib.suppress(TimeoutError):
                        got += await asyncio.wait_for(reader.read(65536), 1.0)
                return f"{got[9:12].decode() or 'refused'}, closed"
        return f"{got[9:12].decode()}, still open after 40 s"

    found = await asyncio.gather(*(drip() for _ in range(200)))
    if any("still open" in each for each in found):
        raise AssertionError(counted(found))
    return counted(found)


@attack("1,500 idle connections of one address")
async def idle(server: Server) -> str:
    kept = []
    try:
        for _ in range(1500):
            with contextlib.suppress(OSError):
                kept.append(await asyncio.open_connection("127.0.0.1", server.port))
        await asyncio.sleep(5)  # the load of the good tenant beside them
        return f"{len(kept)} opened"
    finally:
        for _, writer in kept:
            writer.close()


MALFORMED: Mapping[str, tuple[bytes, bytes]] = {
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
    "two Hosts": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", b"400"),
    "an empty Host": (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", b"400"),
    "a target of 100 kB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"414"),
    "a header of 1 MB": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * MB + b"\r\n\r\n", b"431"),
    "20,000 headers": (
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(20_000)) + b"\r\n",
        b"431",
    ),
    "two lengths": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"400",
    ),
    "length and chunks": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"400",
    ),
    "a name with a space": (b"GET /health HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n", b"400"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200, b"400"),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
}


@attack("malformed requests")
async def malformed(server: Server) -> str:
    wrong = []
    for name, (data, status) in MALFORMED.items():
        got = await _raw(server, data, seconds=40)
        if got.count(b"HTTP/1.") > 1 or (got[9:12] != status and got):
            wrong.append(f"{name}: {got[:60]!r}")
    if wrong:
        raise AssertionError("; ".join(wrong))
    return f"{len(MALFORMED)} refused"


PATHS = (
    "/v1/models",
    "/v1/models/",
    "/V1/models",
    "//v1/models",
    "/v1//models",
    "/v1/../v1/models",
    "/%76%31/models",
    "/v1/models%2f",
    "/v1/models;x",
    "/v1/models?key=x",
    "/metrics",
    "/openapi.json",
    "/v1/audio/voices",
    "/admin",
    "/admin/stages",
    "/stages",
    "/v1/files/../../etc/passwd",
    "/page/../v1/models",
    "/page/%2e%2e/v1/models",
)


@attack("paths without a key")
async def without_key(server: Server) -> str:
    found = []
    for path in PATHS:
        got = await _raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        found.append(got[9:12].decode())
    if any(each.startswith("2") for each in found):
        raise AssertionError(str(dict(zip(PATHS, found, strict=True))))
    return counted(found)


@attack("2,000 guesses of a key")
async def guesses(server: Server) -> str:
    async with aiohttp.ClientSession(server.url, timeout=PATIENCE) as http:

        async def guess(number: int) -> str:
            async with http.get("/v1/models", headers={"authorization": f"Bearer guess-{number}"}) as answer:
                return str(answer.status)

        found = [each for n in range(40) for each in await asyncio.gather(*(guess(n * 50 + m) for m in range(50)))]
    if "200" in found:
        raise AssertionError("a guess was taken")
    return counted(found)


@attack("SIGHUP")
async def hang_up(server: Server) -> str:
    server.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(1)
    if server.process.poll() is not None:
        raise AssertionError(f"the server ended: {server.process.returncode}")
    return "it goes on"


@attack("200 streams that are reset in the middle")
async def resets(server: Server) -> str:
    body = json.dumps({**QUESTION, "stream": True, "modalities": ["text", "audio"], "audio": {"format": "pcm16"}})

    async def reset(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_head(server, len(body)) + body.encode())
        with contextlib.suppress(OSError):
            await reader.read(100 + number)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    for begin in range(0, 200, 50):
        await asyncio.gather(*(reset(begin + n) for n in range(50)), return_exceptions=True)
    return "200 reset"


@attack("300 streams that nobody reads")
async def unread(server: Server) -> str:
    body = json.dumps(
        {
            "model": "demo",
            "stream": True,
            "modalities": ["text", "audio"],
            "audio": {"format": "pcm16"},
            "messages": [{"role": "user", "content": "Tell me a story."}],
        }
    )
    opened = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
            await asyncio.get_running_loop().sock_sendall(sock, _head(server, len(body)) + body.encode())
            opened.append(sock)
    await asyncio.sleep(20)
    for sock in opened:
        sock.close()
    return f"{len(opened)} opened"


# --- forms -------------------------------------------------------------------------------------------------------------------------
def _form(parts: Iterable[tuple[str, bytes]]) -> bytes:
    pieces = [
        b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), data)
        for name, data in parts
    ]
    return b"".join(pieces) + b"--b--\r\n"


FORMS: Mapping[str, Callable[[], bytes]] = {
    "10,000 fields": lambda: _form((f"f{n}", b"1") for n in range(10_000)),
    "a field of 50 MB": lambda: _form([("model", b"m" * BODY)]),
    "1,000 files": lambda: _form((f'file"; filename="{n}', b"1") for n in range(1000)),
    "a file of 50 MB of zeros": lambda: _form([("model", b"demo"), ('file"; filename="a.wav', bytes(BODY))]),
    "no end": lambda: b"--b\r\n" * MB,
    "only headers": lambda: b"--b\r\n" + b"X-A: 1\r\n" * 500_000,
}


@attack("forms")
async def forms(server: Server) -> str:
    found = []
    for made in FORMS.values():
        kind = {"content-type": "multipart/form-data; boundary=b"}
        found.append(await post(server, WRITE_DOWN, await asyncio.to_thread(made), headers=kind))
    return counted(found)


# --- realtime ----------------------------------------------------------------------------------------------------------------------
def _session(server: Server, **more: Any) -> Any:
    return websockets.connect(
        f"ws://127.0.0.1:{server.port}/v1/realtime?model=demo",
        additional_headers=server.headers(),
        max_size=None,
        open_timeout=30,
        **more,
    )


async def _answered(session: Any, event: Any) -> str:
    """Send an event, and return the code of the error that comes back, or ``taken``; the session must go on after it."""
    seen: list[str] = []
    async with asyncio.timeout(60):
        with contextlib.suppress(websockets.ConnectionClosed):
            await session.send(event if isinstance(event, (str, bytes)) else json.dumps(event))
            await session.send(
                json.dumps({"type": "session.update", "session": {"type": "realtime", "instructions": "."}})
            )
        while seen[-1:] != ["session.updated"]:
            got = json.loads(await session.recv())
            seen.append(str(got["error"]["code"]) if got["type"] == "error" else got["type"])
    return next((each for each in seen if not each.startswith("session.")), "taken")


ODD_EVENTS: tuple[Any, ...] = (
    {},
    [],
    None,
    1,
    "x",
    "not json",
    b"\x00\xff",
    {"type": None},
    {"type": ["a"]},
    {"type": {"a": 1}},
    {"type": "t" * MB},
    {"type": "session.update", "session": {"type": ["a"]}},
    {"type": "session.update", "session": {"k" * MB: 1}},
    {"type": "session.update", "session": {"voice": {"a": []}}},
    {"type": "conversation.item.create", "item": {"id": ["a"], "type": "message", "role": "user", "content": []}},
    {"type": "conversation.item.create", "item": {"type": {"a": 1}}},
    {"type": "conversation.item.create", "previous_item_id": {"a": 1}, "item": {"type": "message", "role": ["user"]}},
    {"type": "conversation.item.delete", "item_id": ["a"]},
    {"type": "conversation.item.retrieve", "item_id": {}},
    {"type": "conversation.item.truncate", "item_id": [], "content_index": "x", "audio_end_ms": -1},
    {"type": "response.create", "response": {"modalities": [["text"]]}},
    {"type": "response.cancel", "response_id": ["a"]},
    {"type": "input_audio_buffer.append", "audio": ["a"]},
    {"type": "input_audio_buffer.append", "audio": "@" * MB},
    '{"type": ' + "[" * 500_000,
    '{"type": "response.create", "zzz": [' + "[]," * 300_000 + "[]]}",
)


@attack("odd events in a realtime session")
async def odd_events(server: Server) -> str:
    found = []
    async with _session(server) as session:
        for event in ODD_EVENTS:
            found.append(await _answered(session, event))
    if "taken" in found:
        raise AssertionError(str(found))
    return counted(found)


@attack("15 MiB of sound in one event, and 21 MiB")
async def large_events(server: Server) -> str:
    found = []
    for size in (15 << 20, 21 << 20):
        event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(size)).decode()}
        async with _session(server) as session:
            try:
                found.append(await _answered(session, event))
            except websockets.ConnectionClosed as error:
                found.append(f"closed with {error.rcvd.code if error.rcvd else None}")
    return counted(found)


@attack("500 realtime sessions, each with 4 MB of sound")
async def many_sessions(server: Server) -> str:
    event = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(3 * MB)).decode()})

    async def hold() -> str:
        try:
            async with _session(server) as session:
                await session.send(event)
                await asyncio.sleep(10)
                return "held"
        except (OSError, TimeoutError, websockets.WebSocketException):
            return "refused"

    found: list[str] = []
    for _ in range(5):
        found += await asyncio.gather(*(hold() for _ in range(100)))
    return counted(found)


@attack("5,000 questions in a session that reads nothing")
async def asks_unread(server: Server) -> str:
    sent = 0
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
    async with _session(server, max_queue=1) as session:
        with contextlib.suppress(websockets.ConnectionClosed, TimeoutError):
            async with asyncio.timeout(30):
                for _ in range(5000):
                    await session.send(json.dumps({"type": "conversation.item.create", "item": item}))
                    await session.send(json.dumps({"type": "response.create"}))
                    sent += 1
    return f"{sent} sent"
