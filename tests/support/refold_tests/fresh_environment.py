"""A virtual environment with what a page tells its reader to install, and nothing else.

1. The requirements are those of the page's `pip install` lines. `.` is refold.
2. `linked` resolves them, and what they need in turn, from the metadata of the distributions that the tests' own
   environment has. It links the files of these into a new environment, with their metadata and scripts. refold itself
   is copied from the checkout; tests/test_wheel.py checks that a wheel holds the same files. No network is used.
3. `installed` has pip install them from a wheel of refold and the package index, as the reader does, in the releases
   that the tests' own environment has: another release may need other packages. The module tests/test_wheel.py compares
   both: for one guide, and in `make soak` for each.

A module that no requirement brings cannot be imported there, and its metadata and plugins cannot be found.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from refold_tests.tree import ROOT

INSTALLS = re.compile(r"^\s*(?:python -m )?pip install (.*)$", re.MULTILINE)
PROJECT = "refold"


def requirements(page: Path) -> list[str]:
    """Return what the `pip install` lines of a page install; [] if it has none."""
    lines = INSTALLS.findall(page.read_text(encoding="utf-8"))
    found = [each for line in lines for each in shlex.split(line, comments=True)]
    return [f"{PROJECT}{each[1:]}" if each.startswith(".") else each for each in found]


def linked(folder: Path, needed: Iterable[str]) -> Path:
    """Make the environment from what the tests' own has, and return its Python.

    Raises:
        PackageNotFoundError: The tests' environment does not have a requirement.
    """
    python = _made(folder / "environment", with_pip=False)
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = python.parent.parent / "lib" / release / "site-packages"
    for name, each in _closure(needed).items():
        own = Path(str(each.locate_file("")))
        for part in _parts(each, own):
            if name != PROJECT or not part.endswith(".pth"):  # the link to the checkout
                _link(own / part, packages / part, python)
        if name == PROJECT:
            # With the compiled files next to it, whose times match: nothing is compiled again.
            shutil.copytree(ROOT / "src" / PROJECT, packages / PROJECT)
            shutil.copy2(ROOT / "src" / "pytest_refold.py", packages)
    return python


def installed(folder: Path, needed: Iterable[str], wheel: Path) -> Path:
    """Have pip make the environment, and return its Python."""
    folder.mkdir(parents=True, exist_ok=True)
    releases = folder / "releases.txt"
    releases.write_text("".join(f"{each.name}=={each.version}\n" for each in distributions() if each.name != PROJECT))
    python = _made(folder / "environment", with_pip=True)
    given = [f"{each.replace(PROJECT, str(wheel), 1)}" if each.startswith(PROJECT) else each for each in needed]
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "-c", str(releases), *given],
        cwd=folder,
        check=True,
        timeout=600,
    )
    return python


def built_wheel(folder: Path) -> Path:
    """Build a wheel of refold from the sdist with the hatchling that is installed: no network."""
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def _made(folder: Path, *, with_pip: bool) -> Path:
    venv.create(folder, symlinks=True, with_pip=with_pip)
    return folder / "bin" / "python"


def _closure(needed: Iterable[str]) -> dict[str, Distribution]:
    """Return each distribution that the requirements need, by its name."""
    found: dict[tuple[str, str], Distribution] = {}
    ahead = [Requirement(each) for each in needed]
    while ahead:
        requirement = ahead.pop()
        for extra in ("", *requirement.extras):
            key = canonicalize_name(requirement.name), extra
            if key in found:
                continue
            found[key] = distribution(requirement.name)
            for line in found[key].requires or ():
                each = Requirement(line)
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    ahead.append(each)
    return {name: each for (name, extra), each in found.items() if not extra}


def _parts(given: Distribution, folder: Path) -> set[str]:
    """Return the paths that hold all files of a distribution: a package as a whole, and single files elsewhere.

    A folder that several distributions share, such as `opentelemetry`, has no `__init__.py`.
    """
    found = set()
    for path, *_ in csv.reader((given.read_text("RECORD") or "").splitlines()):
        names = path.split("/")
        above = ("/".join(names[:count]) for count in range(1, len(names)))
        found.add(next((each for each in above if not each.startswith("..") and _is_whole(folder / each)), path))
    return found


@cache
def _is_whole(folder: Path) -> bool:
    return folder.suffix in (".dist-info", ".libs") or (folder / "__init__.py").exists()


def _link(source: Path, target: Path, python: Path) -> None:
    if not source.exists():
        return  # a compiled file that was listed, and not made
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent == python.parent or target.parent.resolve() == python.parent.resolve():
        data = source.read_bytes()
        if data.startswith(b"#!") and b"python" in data.partition(b"\n")[0]:
            target.write_bytes(f"#!{python}\n".encode() + data.partition(b"\n")[2])
            target.chmod(0o755)
            return
    if not target.exists():
        target.symlink_to(source)
