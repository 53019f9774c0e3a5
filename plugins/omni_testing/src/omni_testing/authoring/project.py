"""The files of a new project: every template file of its kind, with the project's names filled in."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from omni_core import __version__
from omni_core.api import HOOKS
from omni_testing.authoring.kinds import KINDS, TORCH_LEVEL
from omni_testing.authoring.names import AuthoringError, ProjectNames

_SUFFIX = ".in"
"""The suffix of template files, so that no tool takes them for Python."""

_COMMON, _USAGE = "common", "usage.md.in"


def write_project(names: ProjectNames, kind: str, folder: Path) -> list[Path]:
    """Write a distribution with one working component of ``kind`` (a key of :data:`KINDS`) into ``folder``.

    Returns the files, relative to the folder.

    Raises:
        AuthoringError: the folder holds something already, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AuthoringError(f"{folder} is not an empty folder; nothing was written. Give another one with --out")
    templates = files("omni_testing.authoring") / "templates"
    values = _values(names, kind)
    values["usage"] = Template((templates / kind / _USAGE).read_text(encoding="utf-8")).substitute(values)
    written = []
    try:
        for path, template in [*_templates(templates / _COMMON), *_templates(templates / kind)]:
            target = Path(path.replace("__module__", names.module))
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            (folder / target).write_text(text, encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise AuthoringError(f"{folder} cannot be written: {error.strerror}") from error
    return sorted(written)


def _values(names: ProjectNames, kind: str) -> dict[str, str]:
    core, hooks = _compatible_core(), [HOOKS[name] for name in KINDS[kind].hooks]
    needed = [f"omni-core{core}"]
    needed += [f"{name}{core}" if name.startswith("omni-") else name for name in KINDS[kind].needs]
    levels = [f"{hook.plural}-{hook.level}" for hook in hooks] + [TORCH_LEVEL] * ("omni-torch" in KINDS[kind].needs)
    return {
        "name": names.distribution,
        "module": names.module,
        "plugin": names.plugin,
        "component": names.component(kind),
        "what": hooks[0].kind,
        "summary": KINDS[kind].summary,
        "core": core,
        "dependencies": ", ".join(f'"{each}"' for each in needed),
        "api": ", ".join(levels),
    }


def _compatible_core() -> str:
    """Return the versions of omni-core that a plugin written today works with."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    following = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f">={major}.{minor},<{following}"


def _templates(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield ``(path of the written file, template)`` for everything below a folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name != _USAGE:
            yield prefix + entry.name.removesuffix(_SUFFIX), entry
