"""Checks that a plugin for the API level before this core's, and one for the level after, are left out and named.

Run by ``nox -s old-plugin`` where omni-core, omni-commands, omni-relay-shm, build and hatchling are installed: it builds and installs both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from omni_core.hookspecs import HOOKS

HERE = Path(__file__).parent
LEVEL = HOOKS["omni_commands"].level


def python(*arguments: str, code: int = 0) -> str:
    """Run a module of Python, which must end with this code, and return what it says."""
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(folder: Path, name: str, level: int) -> None:
    """Install the plugin beside this file under another name, for another level."""
    project = folder / name
    shutil.copytree(HERE, project, ignore=shutil.ignore_patterns("check.py", "__pycache__"))
    (project / "src/omni_old_plugin").rename(project / "src" / f"omni_{name}_plugin")
    for path in [*project.rglob("*.py"), project / "pyproject.toml"]:
        text = re.sub(r"omni([-_])old([-_])plugin", rf"omni\1{name}\2plugin", path.read_text())
        path.write_text(text.replace("commands-0", f"commands-{level}"))
    python("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project))
    python(
        "pip", "install", "-q", "--no-deps", "--force-reinstall", *map(str, folder.glob(f"omni_{name}_plugin-*.whl"))
    )


def main() -> None:
    """Install both plugins and read what the commands say."""
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "old", LEVEL - 1)
        install(Path(folder), "new", LEVEL + 1)
    shown = python("omni_core.cli", "plugins", "check", code=1) + python("omni_core.cli", "greet", code=2)
    print(shown)
    offers = f"this core offers API level {LEVEL} of commands; upgrade"
    for expected in (
        f"API level {LEVEL - 1} of commands, {offers} omni-old-plugin (1.4.0",
        f"API level {LEVEL + 1} of commands, {offers} omni-core (",
        "ok  relay shm",
        "no such command 'greet'",
        "plugin 'omni-new-plugin' of omni-new-plugin 1.4.0 is incompatible",
    ):
        assert expected in shown, f"`omni plugins check` does not say: {expected}"


if __name__ == "__main__":
    main()
