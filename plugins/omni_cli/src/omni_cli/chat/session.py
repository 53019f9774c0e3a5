"""A chat: reads lines, runs the commands in them, sends the rest to the pipeline, shows and keeps the replies."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from attrs import evolve

from omni_cli.chat.conversation import Conversation, Message, written
from omni_cli.chat.paths import MEDIA, dropped_files, read_path, read_paths
from omni_cli.chat.prompt import enter_pressed
from omni_cli.chat.screen import Screen
from omni_cli.chat.slash import NAMES, help_lines, split
from omni_cli.request.generation import Generation
from omni_cli.request.images import StepsShown
from omni_cli.request.media import problem_of
from omni_cli.request.out import ENCODED
from omni_cli.request.sound import sound_writer
from omni_cli.request.wav import WavWriter
from omni_cli.sound_device import RECORDING_RATE, Player, Recorder, SoundDeviceError, open_sounddevice
from omni_core import Audio
from omni_core.api import AsyncPipe, Interface, OmniError, Parameter, did_you_mean
from omni_core.runtime_api import SpeechSink, receive_reply, seconds_of


class Lines(Protocol):
    """The source of a chat's lines."""

    async def read(self) -> str:
        """Return the next line. Raises ``EOFError`` at the end of input and ``KeyboardInterrupt`` on Ctrl-C."""


class Session:
    """A chat with a running pipeline.

    Args:
        interface: what the pipeline declares, if anything.
        files: names of the files that speech is written to; ``None``: it is not written.
        player: makes what plays the speech of a reply; ``None``: it is not played.
        mic: an empty line records a turn.
    """

    def __init__(
        self,
        pipe: AsyncPipe,
        interface: Interface | None,
        generation: Generation,
        screen: Screen,
        *,
        system: str | None = None,
        files: Iterator[Path] | None = None,
        player: Callable[[], Player] | None = None,
        mic: bool = False,
    ) -> None:
        self.conversation = Conversation(system)
        self._pipe = pipe
        self._interface = interface
        self._generation = generation
        self._screen = screen
        self._files = files
        self._player = player
        self._mic = mic
        self._speech: Audio | None = None
        self._said_not_saved = False
        self._recordings: Path | None = None

    @property
    def voices(self) -> Sequence[str]:
        """Names of the voices, as far as the pipeline declares them."""
        return self._interface.voices if self._interface is not None else ()

    def attached(self) -> list[str]:
        """Return the names of the files of the next message."""
        return [Path(part["path"]).name for part in self.conversation.attached]

    async def run(self, lines: Lines) -> None:
        """Read lines until one of them leaves or they end. Raises ``KeyboardInterrupt`` on Ctrl-C at the prompt."""
        try:
            with suppress(EOFError):
                while await self.handle(await lines.read()):
                    pass
        finally:
            if self._recordings is not None:
                shutil.rmtree(self._recordings, ignore_errors=True)

    async def handle(self, line: str) -> bool:
        """Run a line; false if it leaves the chat."""
        word, rest = split(line)
        if line.strip() in ("quit", "exit", "/quit", "/exit"):
            return False
        if files := dropped_files(line):
            for kind, path in files:
                self._attach(kind, path)
        elif word in NAMES:
            await self._command(word[1:], rest)
        elif word.startswith("/") and "/" not in word[1:]:
            self._screen.error(f"no such command {word!r}" + did_you_mean(word, NAMES))
        elif word:
            await self._turn(self.conversation.ask(line))
        elif self._mic:
            await self._record()
        return True

    async def _command(self, name: str, rest: str) -> None:
        argument = {"image", "audio", "video", "save", "system", "voice"}
        if rest and name not in argument:
            self._screen.error(f"/{name} takes nothing after it")
        elif name in MEDIA:
            self._attach_all(name, rest)
        elif name == "system":
            self.conversation.system = rest or None
            self._screen.notice("system message set" if rest else "no system message")
        elif name == "voice":
            self._voice(rest)
        elif name == "save":
            self._save(rest)
        elif name == "reset":
            self.conversation.reset()
            self._screen.notice("conversation forgotten")
        elif name == "mic":
            await self._record()
        elif name == "retry":
            messages = self.conversation.again()
            if messages is None:
                self._screen.error("there is no message to try again")
            else:
                await self._turn(messages)
        else:
            for line in help_lines():
                self._screen.notice(line)

    def _attach_all(self, kind: str, rest: str) -> None:
        try:
            paths = read_paths(rest)
        except ValueError:
            self._screen.error(f"a quotation mark is not closed: {rest}")
            return
        if not paths:
            self._screen.error(f"/{kind} needs a file: /{kind} FILE")
        for path in paths:
            self._attach(kind, path)

    def _attach(self, kind: str, path: Path) -> None:
        takes = self._interface.inputs if self._interface is not None else []
        if takes and kind not in takes:
            self._screen.error(f"this pipeline takes no {kind}; it takes: {', '.join(takes)}")
        elif not path.is_file():
            self._screen.error(f"no such file: {path}")
        elif (problem := problem_of(path, kind)) is not None:
            self._screen.error(problem)
        else:
            self.conversation.attach(kind, path)

    def _voice(self, name: str) -> None:
        declared = voice_parameter(self._interface)
        if declared is None:
            self._screen.error("this pipeline declares no voices to choose from")
            return
        if name:
            known = {voice.casefold(): voice for voice in self.voices}
            if known and name.casefold() not in known:
                self._screen.error(f"no such voice {name!r}" + did_you_mean(name, self.voices))
                return
            metadata = {**self._generation.metadata, declared.name: known.get(name.casefold(), name)}
            self._generation = evolve(self._generation, metadata=metadata)
        voice = self._generation.metadata.get(declared.name, declared.default)
        self._screen.notice(
            f"voice: {voice}" + ("" if name or not self.voices else f"; there are: {', '.join(self.voices)}")
        )

    def _save(self, rest: str) -> None:
        path = None
        with suppress(ValueError):
            path = read_path(rest)
        if path is None:
            self._screen.error("/save needs one file: /save chat.md, /save chat.json or /save reply.wav")
            return
        sound = path.suffix.lower() in (".wav", *ENCODED)
        if path.exists():
            self._screen.error(f"{path} exists; choose another name")
        elif sound and not self._speech:
            self._screen.error("there is no speech to save: the last reply had none")
        elif not sound and path.suffix.lower() not in ("", ".md", ".txt", ".json"):
            self._screen.error(
                f"{path}: speech is saved as .wav, {', '.join(ENCODED)}, the conversation as .md, .txt, .json"
            )
        else:
            try:
                if sound and self._speech:
                    writer = sound_writer(path)
                    writer.write(self._speech.samples, self._speech.sample_rate)
                    writer.close()
                else:
                    path.write_text(written(self.conversation.messages(), path))
                self._screen.notice(f"saved {path}")
            except (OSError, ImportError) as error:
                self._screen.error(f"{path}: {getattr(error, 'strerror', None) or error}")

    async def _record(self) -> None:
        """Record a turn with the microphone and send it."""
        if problem := no_recordings(self._interface):
            self._screen.error(problem)
            return
        try:
            recorder = Recorder(open_sounddevice("/mic", "input"))
        except SoundDeviceError as error:
            self._screen.error(str(error))
            return
        try:
            await enter_pressed(lambda: f"recording {recorder.seconds:.1f} s: Enter sends it, Ctrl-C drops it ")
        except (KeyboardInterrupt, EOFError):
            self._screen.notice("(recording dropped)")
            return
        finally:
            pieces = recorder.stop()
        if not pieces:
            self._screen.error("the microphone gave no sound")
            return
        self._recordings = self._recordings or Path(tempfile.mkdtemp(prefix="omni-chat-"))
        path = self._recordings / f"turn-{len(list(self._recordings.iterdir())) + 1}.wav"
        writer = WavWriter(path)
        for piece in pieces:
            writer.write(piece, RECORDING_RATE)
        writer.close()
        self._screen.notice(f"you: {recorder.seconds:.1f} s of speech")
        self._attach("audio", path)
        await self._turn(self.conversation.ask(""))

    async def _turn(self, messages: list[Message]) -> None:
        """Send a request and show its reply. Ctrl-C ends the reply, not the chat."""
        task = asyncio.ensure_future(self._reply(messages))
        with _interrupts(task.cancel) as interrupted:
            try:
                await task
            except asyncio.CancelledError:
                if not interrupted:  # SIGTERM
                    raise
                self._screen.notice("(reply ended)")
            except OmniError as error:
                self._screen.error(str(error))
            finally:
                self._screen.end_turn()

    async def _reply(self, messages: list[Message]) -> None:
        path = next(self._files) if self._files is not None else None
        writer = sound_writer(path) if path is not None else None
        player = self._player() if self._player is not None else None
        sinks: list[SpeechSink] = [sink for sink in (writer, player) if sink is not None]
        try:
            self._screen.status("")
            reply = await receive_reply(
                StepsShown(self._pipe, self._screen), self._generation.request(messages), self._screen, sinks
            )
            self.conversation.answered(reply.text or "...")
            self._speech = reply.audio
            for line in reply.notices:
                self._screen.warning(line)
            if "image" in reply.outputs:
                self._screen.warning("The reply is an image, which a chat does not show: omni run ... --out image.png")
            if "video" in reply.outputs:
                self._screen.warning("The reply is a video, which a chat does not show: omni run ... --out video.mp4")
            self._say_about_speech(seconds_of(reply), path)
            if player is not None:
                self._screen.status("playing; Ctrl-C stops")
                await player.finish()
        finally:
            if writer is not None:
                writer.close()
            if player is not None:
                player.close()

    def _say_about_speech(self, seconds: float | None, path: Path | None) -> None:
        if seconds == 0:
            self._screen.notice("(the reply has no speech)")
        elif seconds and path is not None:
            self._screen.notice(f"{seconds:.2f} s of speech in {path}")
        elif seconds and self._player is None and not self._said_not_saved:
            self._said_not_saved = True
            self._screen.notice(
                f"{seconds:.2f} s of speech, neither played nor saved: --play plays it, --out reply.wav saves every reply, "
                "/save reply.wav this one."
            )


def no_recordings(interface: Interface | None) -> str:
    """Return why a pipeline cannot be spoken to; empty if it can."""
    takes = interface.inputs if interface is not None else []
    return f"this pipeline takes no audio; it takes: {', '.join(takes)}" if takes and "audio" not in takes else ""


def voice_parameter(interface: Interface | None) -> Parameter | None:
    """Return the key of a request's metadata that chooses the voice."""
    if interface is None or "audio" not in interface.outputs:
        return None
    for each in interface.metadata:
        if each.name in ("speaker", "voice") or (each.choices and each.choices == interface.voices):
            return each
    return None


@contextmanager
def _interrupts(act: Callable[[], Any]) -> Iterator[list[bool]]:
    """Call ``act`` on Ctrl-C; what is yielded is not empty once that has happened. The handler that there was comes back."""
    loop, before, happened = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT), list[bool]()

    def interrupted() -> None:
        happened.append(True)
        act()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield happened
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
