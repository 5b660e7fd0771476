"""Build the documentation as a site that needs no network to be read: `make docs`.

1. Copy the pages to a folder of their own, laid out as in the repository, so that the links between them hold.
2. Fetch the scripts that pages load from their npm packages, once, and compare their SHA-256.
3. Make the navigation from docs/index.md, and run mkdocs, where every warning is an error.
4. Check that no built page loads anything from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from refold.testing.processes import cache_folder

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


class Script(NamedTuple):
    """A script that pages load: in which version of which npm package, under what name there, and its SHA-256."""

    package: str
    file: str
    sha256: str


SCRIPTS = {
    "mermaid.js": Script(
        "@mermaid-js/tiny@11.17.2", "dist/mermaid.tiny.js",
        "7a644017d37f93c8359790884e6b67fb1f747c78eb20475952404bd87190a3f8",
    ),
    # The search in a site that is opened from a folder, without a web server.
    "iframe-worker.js": Script(
        "iframe-worker@1.0.4", "shim/index.js",
        "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609",
    ),
}  # fmt: skip

NUMBER = re.compile(r"^\d{3}[:.] ")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+\.md)\)")
# What a browser fetches by itself: scripts, styles, icons, pictures, fonts. A link that a reader follows is none of it.
FETCHED = (
    re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s\"'>]+"),
    re.compile(r"<link\b(?![^>]*rel=[\"']?(?:canonical|next|prev))[^>]*\bhref=[\"']?(?:https?:)?//[^\s\"'>]+"),
    re.compile(r"url\(\s*[\"']?(?:https?:)?//[^)]+"),
    re.compile(r"@import\s+[\"'](?:https?:)?//[^\"']+"),
)


def pages() -> list[Path]:
    """Every page of the site."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "helm" / "refold" / "README.md"]


def navigation(index: str, decisions: Sequence[Path]) -> list[dict[str, object]]:
    """The site's navigation: a tab for each section of docs/index.md, with the pages that it links to, in its order.

    Args:
        index: The text of docs/index.md.
        decisions: The pages of the section "Decisions".

    Returns:
        mkdocs' `nav`, with paths from the root of the repository.
    """
    found: list[dict[str, object]] = [{"Home": "README.md"}]
    _, *parts = HEADING.split(index)
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        linked = {(Path("docs") / target).as_posix(): text for text, target in LINK.findall(body)}
        entries = [{text: target.replace("docs/../", "")} for target, text in linked.items()]
        if title == "Decisions":
            entries = [{_title(page): page.relative_to(ROOT).as_posix()} for page in decisions]
        found.append({title: entries})
    return found


def _title(page: Path) -> str:
    """Number and heading of a decision."""
    heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"{page.name[:3]}: {NUMBER.sub('', heading)}"


def stage(folder: Path) -> None:
    """Copy the pages to a folder, and what the site adds to them.

    Args:
        folder: Where to; what was there is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for page in [*pages(), *sorted((ROOT / "docs").rglob("*.png"))]:
        copy = folder / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(page.read_bytes())
    (folder / "assets").mkdir()
    shutil.copy(HERE / "site.css", folder / "assets" / "site.css")


def fetched(script: Script, cache: Path) -> bytes:
    """A script of an npm package.

    Args:
        script: Which.
        cache: A folder that keeps it for the next build.

    Returns:
        The script's bytes. The program ends where it cannot be had, or is another than it was.
    """
    kept = cache / f"{script.sha256}.js"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        if npm is None:
            sys.exit(f"error: npm is missing: {script.package}, which the pages load, is fetched with it")
        packed = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", cache, script.package], check=True, stdout=subprocess.PIPE
        )
        archive = cache / packed.stdout.decode().split()[-1]
        with tarfile.open(archive) as files:
            member = files.extractfile(f"package/{script.file}")
            assert member is not None
            found = member.read()
        archive.unlink()
        if hashlib.sha256(found).hexdigest() != script.sha256:
            sys.exit(f"error: {script.file} of {script.package} is not the script it was: its SHA-256 differs")
        kept.write_bytes(found)
    return kept.read_bytes()


def fetched_from_elsewhere(site: Path) -> Iterator[str]:
    """What the built pages and styles would have a browser fetch from another host.

    Args:
        site: The folder of the built site.

    Returns:
        A line for each, with the file.
    """
    for file in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        text = file.read_text(encoding="utf-8")
        for pattern in FETCHED:
            yield from (f"{file.relative_to(site)}: {found}" for found in pattern.findall(text))


def build(folder: Path) -> Path:
    """Build the site.

    Args:
        folder: Where to; `site` in it is the result.

    Returns:
        The folder of the site.
    """
    stage(folder / "pages")
    for name, script in SCRIPTS.items():
        (folder / "pages" / "assets" / name).write_bytes(fetched(script, cache_folder() / "site"))
    settings = {
        "INHERIT": str(HERE / "mkdocs.yml"),
        "docs_dir": str(folder / "pages"),
        "site_dir": str(folder / "site"),
        "nav": navigation(
            (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), sorted((ROOT / "docs" / "decisions").glob("*.md"))
        ),
    }
    # JSON is YAML.
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-P", "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", folder / "mkdocs.yml"],
        check=True,
        # It says with each build that its next major version is another program.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    if elsewhere := list(fetched_from_elsewhere(folder / "site")):
        sys.exit("error: the site would fetch from elsewhere:\n" + "\n".join(elsewhere))
    return folder / "site"


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "docs") / "index.html")
