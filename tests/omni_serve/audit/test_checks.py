"""Our own server passes every check; each deliberate mistake of a small server is found by the check that is about it, and by no other."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from faulty_server import KEY, Small
from image_stages import drawing_pipeline
from omni_serve_clients import running_server

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.audit.checks import CHECKS, Check, Result, run_check
from omni_serve.audit.checks import audit as run_audit
from omni_serve.audit.cli import audit
from omni_serve.audit.subject import Subject
from omni_serve.remote import Remote, UnreachableError

OTHERS = [check for check in CHECKS if not check.name.startswith("realtime")]
IMAGES = [check.name for check in CHECKS if check.name.startswith("image")]
REALTIME = [check for check in CHECKS if check.name.startswith("realtime")]


async def results_of(
    address: str, key: str | None, prompt: str, grace: float, checks: list[Check] = CHECKS
) -> dict[str, Result]:
    found: list[Result] = []
    async with Remote(f"http://{address}", key, 20) as remote:
        subject = await Subject.meet(remote, None, None, prompt, grace)
        await run_audit(subject, checks, 20, found.append)
    return {each.name: each for each in found}


@pytest.mark.asyncio(loop_scope="session")
async def test_our_server_passes(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(keys={"mine": KEY}))
    async with running_server(app) as address:
        found = await results_of(address, KEY, "one two three four", 10.0)
    others = {name: each.verdict for name, each in found.items() if each.verdict != "pass"}
    assert others == dict.fromkeys(IMAGES, "not offered"), found
    assert found["audio-clicks"].why == "3 borders between events"


@pytest.mark.asyncio(loop_scope="session")
async def test_our_server_of_images_passes(pipe: AsyncPipe) -> None:
    """``pipe`` has made the stages importable."""
    async with (
        open_async(drawing_pipeline()) as drawing,
        running_server(create_app(drawing, Settings(keys={"mine": KEY}))) as address,
    ):
        found = await results_of(address, KEY, "grey", 10.0)
    assert {name: each.why for name, each in found.items() if each.verdict == "fail"} == {}
    assert {name for name, each in found.items() if each.verdict == "pass"} >= {*IMAGES, "error-missing", "disconnects"}
    assert found["image-order"].why == "2 previews, and the image"
    assert found["image-edit"].why.startswith("png, 32x32; ")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_server_without_keys_has_none_to_check(pipe: AsyncPipe) -> None:
    async with running_server(create_app(pipe, Settings())) as address, Remote(f"http://{address}/v1/") as remote:
        subject = await Subject.meet(remote, None, None, "hello", 10.0)
        for check in CHECKS:
            if "key" in check.name:
                assert (await run_check(check, subject, 10)).verdict == "not offered"


MISTAKES = {
    "none": set(),
    "any model": {"error-model"},
    "form": {"error-missing"},
    "type": {"error-type"},
    "ignores": {"error-parameter"},
    "picture": {"error-picture"},
    "key": {"error-key"},
    "leak": {"key-coverage"},
    "no role": {"chat-order"},
    "usage": {"chat-usage"},
    "streams another text": {"chat-equal"},
    "random": {"chat-seed", "chat-equal"},
    "pieces": {"audio-pieces"},
    "cut": {"audio-equal"},
    "clicks": {"audio-clicks", "speech-clicks"},
    "no header": {"speech-formats"},
    "no end": {"speech-order"},
    "holds": {"disconnects"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_each_mistake_is_found_by_its_own_check(mistake: str) -> None:
    small = Small(mistake)
    async with running_server(small.app()) as address:
        # A generous time where the server is right; where it is not, a short one: the probe waits for ever.
        found = await results_of(address, KEY, "Say hello.", 0.5 if mistake == "holds" else 10.0, OTHERS)
        for task in small.left_behind:
            task.cancel()
    assert {name for name, each in found.items() if each.verdict == "fail"} == MISTAKES[mistake]
    assert all(each.why for each in found.values())


IMAGE_MISTAKES = {
    "none": set(),
    "timeless": {"whole"},
    "no image": {"whole", "formats", "order", "edit"},
    "always png": {"formats"},
    "late preview": {"order"},
    "any size": {"refusals"},
    "edits nothing": {"edit"},
}


@pytest.mark.parametrize("mistake", IMAGE_MISTAKES)
async def test_each_mistake_of_images_is_found_by_its_own_check(mistake: str) -> None:
    async with running_server(Small(mistake).app()) as address, Remote(f"http://{address}", KEY, 20) as remote:
        subject = Subject(remote, "small", "alloy", "grey", images=None)
        found = [await run_check(check, subject, 5) for check in CHECKS if check.name in IMAGES]
    failed = {each.name.removeprefix("image-"): each.why for each in found if each.verdict != "pass"}
    assert set(failed) == IMAGE_MISTAKES[mistake], failed


REALTIME_MISTAKES = {
    "none": set(),
    "no object": {"session"},
    "beta names": {"order", "turn", "manual", "barge-in"},
    "no part": {"order"},
    "loses words": {"order"},
    "another item": {"turn"},
    "answers by itself": {"manual"},
    "another reason": {"barge-in"},
    "talks on": {"barge-in"},
    "truncates to nothing": {"barge-in"},
    "breaks by cancelling": {"cancel"},
    "anonymous errors": {"errors"},
    "its own fault": {"errors"},
    "hangs up": {"errors", "cancel"},
}


@pytest.mark.parametrize("mistake", REALTIME_MISTAKES)
async def test_each_mistake_of_a_session_is_found_by_its_own_check(mistake: str) -> None:
    async with running_server(Small(mistake).app()) as address, Remote(f"http://{address}", KEY, 20) as remote:
        subject = Subject(remote, "small", "alloy", "Say hello.")
        found = [await run_check(check, subject, 5) for check in REALTIME]
    failed = {each.name.removeprefix("realtime-"): each.why for each in found if each.verdict == "fail"}
    assert set(failed) == REALTIME_MISTAKES[mistake], failed


async def test_a_server_without_sessions_is_not_blamed_for_them() -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY) as remote:
        subject = Subject(Remote(remote.url, "another key"), "small", "alloy", "hello")
        found = [await run_check(check, subject, 5) for check in REALTIME]
    assert {each.verdict for each in found} == {"not offered"}
    assert "403" in found[0].why


async def test_a_server_that_serves_nothing_cannot_be_audited() -> None:
    async with running_server(Small("").app()) as address, Remote(f"http://{address}", KEY) as remote:
        with pytest.raises(UnreachableError, match=r"serves neither chats nor speech.*404: no such model"):
            await Subject.meet(remote, "another", None, "hello", 1.0)


async def test_a_check_that_breaks_is_a_failure() -> None:
    async def broken(subject: Subject) -> str:
        raise KeyError("choices")

    result = await run_check(Check("x", "X", broken), object(), 1)  # type: ignore[arg-type]
    assert (result.verdict, result.why) == ("fail", "an answer has another form: KeyError: 'choices'")


def test_the_command_lists_its_checks_and_knows_their_names() -> None:
    listed = CliRunner().invoke(audit, ["--list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == [check.name for check in CHECKS]
    refused = CliRunner().invoke(audit, ["http://127.0.0.1:1", "--only", "chat-ordre"])
    assert refused.exit_code == 2
    assert "did you mean 'chat-order'?" in refused.output


def test_the_command_ends_with_1_if_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def results(url: str, checks: list[Check], show: object, options: object) -> None:
        show(Result("a", "A", "pass", "fine"))  # type: ignore[operator]
        show(Result("b", "B", "fail", "bad"))  # type: ignore[operator]

    monkeypatch.setattr("omni_serve.audit.cli._audit", results)
    ended = CliRunner().invoke(audit, ["http://127.0.0.1:1", "--json"])
    assert ended.exit_code == 1
    assert json.loads(ended.output)["counts"] == {"pass": 1, "fail": 1, "not offered": 0}
