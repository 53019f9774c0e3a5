"""The scheduler of vocoders: chunks of the requested sizes, batched if possible; invalid frames are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hearing import answer, end, frame, heard

from omni_core.errors import ConfigError
from omni_core.protocol.outputs import AudioChunk
from omni_torch.vocoder.scheduler import CUT, VocoderScheduler

Work = list[tuple[list[int], torch.Tensor]]


class Counter:
    """Two codes a frame become two samples, their sums; the first sample of a stream comes one frame late."""

    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 8000, 2, 64

    def __init__(self, fails: bool = False) -> None:
        self.passes: list[list[int]] = []
        self._fails = fails

    def begin(self) -> list[int]:
        return []

    def decode(self, work: Work) -> list[torch.Tensor]:
        self.passes.append([len(frames) for _, frames in work])
        if self._fails:
            raise MemoryError("no room")
        waves = []
        for stream, frames in work:
            before = sum(stream)
            stream.append(len(frames))
            wave = frames.sum(1).float().repeat_interleave(2)
            waves.append(wave if before else wave[2:])
        return waves


def turns(scheduler: VocoderScheduler) -> None:
    """Make turns until the next one would wait for a message."""
    while scheduler.unfinished or len(scheduler.inbox):
        scheduler.turn()


def frames_of(count: int) -> torch.Tensor:
    return torch.arange(2 * count).reshape(count, 2) % 64


@pytest.mark.parametrize(("count", "passes"), [(0, []), (1, [[1]]), (2, [[2]]), (9, [[2], [7]]), (12, [[2], [7], [3]])])
def test_the_first_chunk_is_small_and_the_last_what_is_left(count: int, passes: list[list[int]]) -> None:
    vocoder = Counter()
    result = heard(VocoderScheduler(vocoder, initial_chunk=2, chunk=7, growth=None), frames_of(count))
    assert vocoder.passes == passes
    assert np.array_equal(result.samples, frames_of(count).sum(1).float().repeat_interleave(2)[2:])
    assert result.sample_rate == 8000


@pytest.mark.parametrize(
    ("initial", "chunk", "growth", "sizes"),
    [
        (2, 7, 1.0, [2, 2, 4, 7, 7, 7, 1]),
        (2, 7, 2.0, [2, 4, 7, 7, 7, 3]),
        (4, 100, 1.0, [4, 4, 8, 14]),
        (4, 100, 0.1, [4] * 7 + [2]),
        (5, 3, 1.0, [5] + [3] * 8 + [1]),
    ],
)
def test_a_chunk_has_as_many_frames_as_all_before_it(initial: int, chunk: int, growth: float, sizes: list[int]) -> None:
    vocoder = Counter()
    result = heard(VocoderScheduler(vocoder, initial_chunk=initial, chunk=chunk, growth=growth), frames_of(30))
    assert vocoder.passes == [[each] for each in sizes]
    assert np.array_equal(result.samples, frames_of(30).sum(1).float().repeat_interleave(2)[2:])


@pytest.mark.parametrize("together", [False, True])
def test_a_context_is_heard_before_the_first_frame_and_not_sent(together: bool) -> None:
    """As the recording of a voice, whose sound is the client's own."""

    class Whole(Counter):
        """Fails passes of several streams, so that each is restarted."""

        def decode(self, work: Work) -> list[torch.Tensor]:
            if together and len(work) > 1:
                raise MemoryError("no room")
            return super().decode(work)

    frames = frames_of(5)
    scheduler = VocoderScheduler(Whole(), initial_chunk=2, chunk=7, growth=None)
    names = ["r", "s"] if together else ["r"]
    for name in names:
        for chunk in (frames_of(3), *frames):
            scheduler.inbox.put(frame(name, chunk))
        for message in end(name):
            scheduler.inbox.put(message)
    turns(scheduler)
    for name in names:
        result = next(each.data for each in scheduler.outbox.items if each.type == "result" and each.request_id == name)
        assert np.array_equal(
            result.samples, frames.sum(1).float().repeat_interleave(2)
        )  # the context had the late sample
        assert result.usage == {"completion_audio_tokens": 5}


def test_a_context_comes_first_and_once() -> None:
    for before in (frames_of(1)[0], frames_of(2)):
        scheduler = VocoderScheduler(Counter(), initial_chunk=2, chunk=7)
        for chunk in (before, frames_of(2)):
            scheduler.inbox.put(frame("r", chunk))
        turns(scheduler)
        assert "this one has shape [2, 2]" in str(scheduler.outbox.items[-1].data)


class Prompt(Counter):
    """Gives the samples of a frame with the frame."""

    def decode(self, work: Work) -> list[torch.Tensor]:
        return [frames.sum(1).float().repeat_interleave(2) for _, frames in work]


@pytest.mark.parametrize(
    ("growth", "speed", "is_smooth"),
    [
        (1.0, 1.76, True),
        (1.0, 1.7, False),
        (0.5, 1.5, True),
        (0.5, 1.2, False),
        (2.0, 2.7, True),
        (2.0, 2.6, False),
        (None, 6.01, True),
        (None, 5.9, False),
    ],
)
def test_no_pause_where_frames_come_faster_than_they_are_heard_by_growth(
    growth: float | None, speed: float, is_smooth: bool
) -> None:
    """A listener who begins with the first piece; a second is 8000 samples, and 4000 frames."""
    scheduler = VocoderScheduler(Prompt(), initial_chunk=4, chunk=24, growth=growth)
    now = [0.0]
    scheduler.clock = lambda: now[0]
    for number, each in enumerate(frames_of(200), 1):
        now[0] = number / 4000 / speed
        scheduler.inbox.put(frame("a", each))
        turns(scheduler)
    assert (scheduler.statistics()["late_seconds"] < 1e-9) == is_smooth


@pytest.mark.parametrize("name", ["initial_chunk", "chunk", "max_running"])
@pytest.mark.parametrize("value", ["4", 2.5, True])
def test_numbers_of_another_type_are_named(name: str, value: Any) -> None:
    options: dict[str, Any] = {"initial_chunk": 1, "chunk": 1, name: value}
    with pytest.raises(ConfigError, match=f"{name}: must be at least 1.*is {value!r}"):
        VocoderScheduler(Counter(), **options)


@pytest.mark.parametrize("growth", [0, -1.0, float("inf"), float("nan"), "fast", True])
def test_no_growth_is_an_error(growth: Any) -> None:
    with pytest.raises(ConfigError, match="growth: must be a number greater than 0, or null"):
        VocoderScheduler(Counter(), initial_chunk=1, chunk=1, growth=growth)


def test_requests_with_a_chunk_each_share_a_pass() -> None:
    vocoder = Counter()
    scheduler = VocoderScheduler(vocoder, initial_chunk=2, chunk=7)
    for name in ("a", "b"):
        for each in frames_of(2):
            scheduler.inbox.put(frame(name, each))
    scheduler.inbox.put(frame("c", frames_of(1)[0]))
    turns(scheduler)
    assert vocoder.passes == [[2, 2]]


def test_a_pass_has_at_most_so_many_requests() -> None:
    vocoder = Counter()
    scheduler = VocoderScheduler(vocoder, initial_chunk=2, chunk=7, growth=None, max_running=2)
    for name, count in (("a", 9), ("b", 2), ("c", 2)):
        for each in frames_of(count):
            scheduler.inbox.put(frame(name, each))
    turns(scheduler)
    assert vocoder.passes == [[2, 2], [2, 7]], "those that were served take their turn last"
    with pytest.raises(ConfigError, match="max_running: must be at least 1, is 0"):
        VocoderScheduler(vocoder, initial_chunk=2, chunk=7, max_running=0)


def test_a_burst_is_decoded_at_once() -> None:
    vocoder = Counter()
    scheduler = VocoderScheduler(vocoder, initial_chunk=4, chunk=4)
    for each in frames_of(42):
        scheduler.inbox.put(frame("r", each))
    turns(scheduler)
    assert vocoder.passes == [[4]] * 10
    assert len(scheduler.outbox.drain()) == 10


class Allergic(Counter):
    """Fails on a code of 13, after it has advanced the streams before it."""

    def decode(self, work: Work) -> list[torch.Tensor]:
        waves = []
        for stream, frames in work:
            if bool((frames == 13).any()):
                raise SystemExit("thirteen")
            waves += super().decode([(stream, frames)])
        return waves


def test_a_request_that_cannot_be_decoded_fails_alone() -> None:
    """The others get the same sound as without it, although the pass that failed had advanced them."""
    scheduler = VocoderScheduler(Allergic(), initial_chunk=1, chunk=2)
    good = torch.arange(14, 34).reshape(10, 2)
    for index in range(10):
        for name, frames in (("a", good), ("bad", frames_of(10)), ("b", good + 20)):
            scheduler.inbox.put(frame(name, frames[index]))
        if index % 3 == 0:
            scheduler.turn()
    for name in ("a", "b"):
        for message in end(name):
            scheduler.inbox.put(message)
    turns(scheduler)
    ends = {message.request_id: message for message in scheduler.outbox.drain() if message.type != "stream"}
    assert isinstance(ends["bad"].data, SystemExit)
    for name, frames in (("a", good), ("b", good + 20)):
        assert np.array_equal(ends[name].data.samples, frames.sum(1).float().repeat_interleave(2)[2:])


@pytest.mark.parametrize("bad", [-1, 64, 10**6])
def test_codes_out_of_range_fail_the_request(bad: int) -> None:
    frames = frames_of(5)
    frames[3, 1] = bad
    *_, last = answer(VocoderScheduler(Counter(), initial_chunk=10, chunk=10), frames)
    assert last.type == "error"
    assert "codes must be from 0 to 63" in str(last.data)


def test_a_frame_of_another_width_is_refused() -> None:
    *_, last = answer(VocoderScheduler(Counter(), initial_chunk=1, chunk=1), torch.zeros(1, 3, dtype=torch.int64))
    assert "a frame has 2 codes" in str(last.data)


@pytest.mark.parametrize("count", [1, 4])
def test_a_pass_that_fails_ends_the_requests_that_were_in_it(count: int) -> None:
    """Tested with the failing pass before and in the flush; the request without a whole chunk of frames continues."""
    scheduler = VocoderScheduler(Counter(fails=True), initial_chunk=4, chunk=4)
    scheduler.inbox.put(frame("other", frames_of(1)[0]))
    for message in [*(frame("r", each) for each in frames_of(count)), *end("r")]:
        scheduler.inbox.put(message)
    scheduler.turn()
    (failed,) = scheduler.outbox.drain()
    assert (failed.request_id, failed.type, str(failed.data)) == ("r", "error", "no room")
    assert scheduler.statistics()["running"] == 1


def test_what_was_said_follows_the_sound() -> None:
    scheduler = VocoderScheduler(Counter(), initial_chunk=2, chunk=2)
    for each in frames_of(3):
        scheduler.inbox.put(frame("r", each))
    done, payload = end("r")
    payload.data.data["said"] = "one"
    scheduler.inbox.put(done)
    scheduler.inbox.put(payload)
    turns(scheduler)
    *sounds, said, _ = [each.data for each in scheduler.outbox.drain()]
    assert [type(each) for each in sounds] == [AudioChunk, AudioChunk]
    assert said == {"said": "one"}


def test_codes_are_returned_only_on_request() -> None:
    scheduler = VocoderScheduler(Counter(), initial_chunk=1, chunk=1)
    for message in (frame("r", frames_of(1)[0]), *end("r")):
        scheduler.inbox.put(message)
    scheduler.turn()
    assert scheduler.outbox.drain()[-1].data.codes is None


@pytest.mark.parametrize(("reason", "notices"), [("stop", []), ("length", [CUT])])
def test_speech_that_a_limit_has_cut_says_so(reason: str, notices: list[str]) -> None:
    scheduler = VocoderScheduler(Counter(), initial_chunk=1, chunk=1)
    for message in (frame("r", frames_of(1)[0]), *end("r", reason)):
        scheduler.inbox.put(message)
    scheduler.turn()
    assert scheduler.outbox.drain()[-1].data.notices == notices


@pytest.mark.parametrize(("initial_chunk", "chunk", "word"), [(0, 1, "initial_chunk"), (1, 0, "chunk")])
def test_a_chunk_of_no_frames_is_refused(initial_chunk: int, chunk: int, word: str) -> None:
    with pytest.raises(ConfigError, match=f"^{word}: must be at least 1 frame"):
        VocoderScheduler(Counter(), initial_chunk=initial_chunk, chunk=chunk)


def test_its_thread_uses_the_vocoder_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    vocoder = Counter()
    vocoder.device = torch.device("cuda:1")
    scheduler = VocoderScheduler(vocoder, initial_chunk=2, chunk=7)
    scheduler.stop()
    scheduler.start()
    assert used == [torch.device("cuda:1")]


def test_requests_take_turns_where_a_pass_has_no_room_for_all() -> None:
    scheduler = VocoderScheduler(Counter(), initial_chunk=2, chunk=2, max_running=1)
    for name in ("a", "b"):
        for each in frames_of(8):
            scheduler.inbox.put(frame(name, each))
    heard: list[str] = []
    while len(heard) < 8:
        assert scheduler.turn()
        heard += [each.request_id for each in scheduler.outbox.drain() if each.type == "stream"]
    assert heard == ["a", "b"] * 4


def test_late_sound_is_counted_from_the_first_sound_on() -> None:
    scheduler = VocoderScheduler(Counter(), initial_chunk=2, chunk=4, growth=None)
    now = [100.0]
    scheduler.clock = lambda: now[0]
    for number, each in enumerate(frames_of(10)):
        scheduler.inbox.put(frame("a", each))
        if number in (1, 5, 9):  # a chunk is whole: 2 samples, 8 samples, 8 samples of 1/8000 s
            turns(scheduler)
            now[0] += (0.0001, 0.5, 0.0)[(1, 5, 9).index(number)]
    counted = scheduler.statistics()
    assert counted["sound_seconds"] == pytest.approx(18 / 8000)
    # The second chunk came before the first was played; the third half a second after, when both had been.
    assert counted["late_seconds"] == pytest.approx(0.5 + 0.0001 - 10 / 8000)
