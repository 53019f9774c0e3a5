"""A reader of a tutorial, who types what it says."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from attrs import define

FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NO_SNIPPETS = {"mermaid"}
PART = " (part)"


@define
class Reader:
    """A reader who follows a page, in an environment with the packages of this one, and a folder of their own."""

    folder: Path
    environment: dict[str, str]

    def write(self, name: str, text: str) -> None:
        """A file, or more of it: two empty lines after what is there."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() + "\n\n" if path.exists() else ""
        path.write_text(before + text)

    def run(self, command: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a line of shell, which may change the folder."""
        trailer = '\nstatus=$?; pwd > "$OMNI_TUTORIAL_FOLDER"; exit $status'
        where = self.folder.parent / "folder"
        done = subprocess.run(
            ["bash", "-c", command + trailer],
            cwd=self.folder,
            env={**self.environment, "OMNI_TUTORIAL_FOLDER": str(where)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.folder = Path(where.read_text().strip())
        where.unlink()
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def reader(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Make their environment, which sees the packages of this one; packages that they install stay in it."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True, with_pip=False)
    packages = next((home / "lib").glob("python*")) / "site-packages"
    ours = [path for path in dict.fromkeys([*site.getsitepackages(), *sys.path]) if path.endswith("site-packages")]
    packages.joinpath("ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
    omni = home / "bin" / "omni"
    omni.write_text(f"#!{home / 'bin' / 'python'}\nfrom omni_core.cli import main\nmain()\n")
    omni.chmod(0o755)
    settings = {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        # Hatchling is here, and so is everything that the tutorials' projects need. (pip reads 0 as "no isolation".)
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "XDG_CACHE_HOME": str(tmp_path_factory.getbasetemp() / "cache"),  # random checkpoints are written to it once
    }
    (tmp_path / "home").mkdir()
    return Reader(tmp_path / "home", {**os.environ, **settings})


def follow(page: Path, reader: Reader) -> None:
    """Do everything that a page says.

    Raises:
        AssertionError: a command fails, or prints something else.
    """
    blocks = FENCE.findall(page.read_text())
    assert len(blocks) == page.read_text().count("\n```") // 2, "a code block of another form"
    for language, title, text in blocks:
        if title.endswith(PART):
            assert text in (reader.folder / title.removesuffix(PART)).read_text(), f"{title} is not there:\n{text}"
        elif title:
            reader.write(title, text)
        elif language == "console":
            for command, expected in commands(text):
                check(command, expected, *reader.run(command))
        else:
            assert language in NO_SNIPPETS, f"no test runs this {language or 'nameless'} block:\n{text}"


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of a console block, and what is shown below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (found[-1][0] + line[2:], "")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def check(command: str, expected: str, code: int, output: str, errors: str) -> None:
    """A command that shows an error or a failed test has to fail; any other to succeed. Output that is not shown is not compared."""
    told = f"$ {command}{output}{errors}"
    if "Error:" in expected or "FAILED" in expected:
        assert code != 0, told
        output += errors
    else:
        assert code == 0, told
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    assert not expected or re.fullmatch(pattern, output, re.DOTALL), f"{told}\nthe page shows:\n{expected}"
