"""A chat's screen: text, notices and the status line do not overwrite each other."""

from __future__ import annotations

import io

from rich.console import Console

from omni_cli.chat.screen import Screen


def shown(**options: object) -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    return Screen(Console(file=output, width=40, highlight=False, **options)), output  # type: ignore[arg-type]


def test_a_status_line_begins_behind_the_reply() -> None:
    screen, output = shown(force_terminal=True)
    with screen:
        screen.text("a reply")
        screen.audio(0.5)
        assert "speech" not in output.getvalue(), "the text may not be complete"
        screen.status("playing")
    assert output.getvalue().startswith("a reply\n")
    assert "playing" in output.getvalue()


def test_the_status_line_is_one_line() -> None:
    screen, output = shown(force_terminal=True)
    with screen:
        for name in ("first", "second", "third", "fourth"):
            screen.stage(f"a-stage-with-a-long-name-{name}", "starting")
    assert "starting: 0 of 4 stages ready, waiti…" in output.getvalue()
    assert output.getvalue().count("\n") == 1, "as a terminal of 40 columns shows it"


def test_without_colours() -> None:
    screen, output = shown(force_terminal=True, no_color=True)
    screen.error("bad\x1b[2J")
    screen.warning("odd")
    assert output.getvalue() == "Error: bad\ufffd[2J\nodd\n"


def test_a_notice_ends_the_reply() -> None:
    screen, output = shown()
    screen.text("a reply")
    screen.notice("a notice")
    screen.end_turn()
    assert output.getvalue() == "a reply\na notice\n\n"
