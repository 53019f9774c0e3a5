"""Every page of the built site in headless Chromium, opened as a file, at the width of a desktop and of a phone.

`nox -s site` builds the site and finds or installs the browser. By itself: build with `mkdocs build`, then set
``OMNI_CHROMIUM`` to the executable of a Chromium.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; `nox -s site` has it")

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

SITE = Path(os.environ.get("OMNI_SITE", Path(__file__).parents[3] / "build" / "site"))
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html")
WIDTHS = (1280, 390)
# Without them the browser looks for updates, which a machine without a network reports as errors.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]

UNRENDERED = """() => [...document.querySelectorAll(".mermaid")]
    .filter(each => each.tagName === "PRE" || each.getBoundingClientRect().height < 20).length"""
BROKEN = "() => [...document.images].filter(each => each.complete && !each.naturalWidth).map(each => each.src)"
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--headless=shell", *QUIET]
        browser = playwright.chromium.launch(executable_path=os.environ["OMNI_CHROMIUM"], args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    return browser.new_page()


def problems(page: Page, path: Path) -> list[str]:
    """Open a page and return everything that is wrong with it."""
    found: list[str] = []

    def console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.append(f"console: {message.text}")

    def request(made: Request) -> None:
        if not made.url.startswith(("file:", "data:", "blob:")):
            found.append(f"fetched from elsewhere: {made.url}")

    def error(raised: Exception) -> None:
        found.append(f"script: {raised}")

    listeners = {"console": console, "request": request, "pageerror": error}
    for event, listener in listeners.items():
        page.on(event, listener)  # type: ignore[call-overload]
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.goto(path.as_uri())
    if page.query_selector(".mermaid"):
        try:
            page.wait_for_function(f"({UNRENDERED})() === 0", timeout=5000)
        except Exception:
            found.append(f"{page.evaluate(UNRENDERED)} diagrams are not rendered")
    found += [f"broken picture: {each}" for each in page.evaluate(BROKEN)]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        beyond = page.evaluate(WIDE)
        if beyond > 0:
            found.append(f"{beyond} px wider than a screen of {width} px")
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return found


def test_the_site_is_built() -> None:
    assert "index.html" in PAGES
    assert len(PAGES) > 30


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(page: Page, name: str) -> None:
    assert problems(page, SITE / name) == []


def test_the_search_works_without_a_server_and_shows_pages_before_decisions(page: Page) -> None:
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.goto((SITE / "index.html").as_uri())
    page.fill(".md-search__input", "gpu memory")
    page.wait_for_selector(".md-search-result__item a")
    links = [each.get_attribute("href") or "" for each in page.query_selector_all(".md-search-result__item > a")]
    assert links
    assert "decisions/" not in links[0]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<div style="width: 3000px">wide</div>', "wider than a screen of 1280 px"),
        ('<div style="width: 600px">less wide</div>', "wider than a screen of 390 px"),
        ("<script>console.error('broken')</script>", "console: broken"),
        ("<script>missing()</script>", "script: "),
        ('<pre class="mermaid">graph LR; a --> b</pre>', "not rendered"),
        ('<img src="missing.png">', "broken picture"),
        ('<script src="http://127.0.0.1:9/x.js"></script>', "fetched from elsewhere"),
    ],
)
def test_a_wrong_page_is_detected(page: Page, tmp_path: Path, body: str, complaint: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body style='margin: 0'>{body}</body>")
    assert any(complaint in each for each in problems(page, path))
