"""A run, or a comparison of two, as one file: it is complete, loads nothing, and can omit secrets."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold.explorer.demo.desk import RUN
from refold_tests.explored import FORK, READER

pytestmark = pytest.mark.outside

SECRET = "sk-proj-" + "Zq7" * 14
TOLD = "ada.lovelace@example.org"


def exported(url: str, file: Path, *arguments: str) -> str:
    """Export; check the output; return the text of the file."""
    assert run(["run", "export", *arguments, "--html", str(file), "--log", url]) == 0
    content = file.read_text(encoding="utf-8")
    assert re.findall(r'href="(?!#step-\d+")', content) == []
    assert re.findall(r"<script|<link|<img|\bsrc=|\son[a-z]+=|url\(|@import", content) == []
    assert "default-src &#39;none&#39;" in content or "default-src 'none'" in content
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", content, flags=re.DOTALL)).split())


def test_run_is_one_file(incident_url: str, tmp_path: Path) -> None:
    text = exported(incident_url, tmp_path / "run.html", RUN)
    for said in ("A leaking kettle", "Step 1 look-up", "Step 4 pay", "refund the kettle", "1998", "19.99", "Traceback"):
        assert said in text
    read = exported(incident_url, tmp_path / "reader.html", READER)
    assert "⚠ stale" in read
    assert "rate_limit : it knew 50 , the log had 500" in read


def test_two_runs_are_one_file(incident_url: str, tmp_path: Path) -> None:
    text = exported(incident_url, tmp_path / "two.html", RUN, FORK)
    assert "first divergence at step 4" in text
    assert "1998" in text
    assert "1999" in text
    assert "B is a fork, from after step 3." in text


def test_secrets_are_omitted_on_request(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"

    @refold.tool(effect="read", name="vault.look")
    def look(password: str) -> dict[str, str]:
        return {"mail": TOLD, "token": SECRET}

    def agent(run: refold.Run) -> None:
        with run.step("look"):
            run.state["api_key"] = SECRET
            found = look(password=SECRET)
            run.model(lambda messages: TOLD, messages=[{"role": "user", "content": f"write to {found['mail']}"}])
            run.decide(f"write to {TOLD}", why=f"with {SECRET}")
        if run.id == "secret-2":
            raise ValueError(f"{SECRET} was refused")

    with refold.open(url) as log:
        log.run("a", id="secret-1", title=f"for {TOLD}").drive(agent)
        with pytest.raises(ValueError, match="refused"):
            log.run("a", id="secret-2", title=f"for {TOLD}").drive(agent)
    assert SECRET in exported(url, tmp_path / "whole.html", "secret-1")
    for number, runs in enumerate((["secret-1"], ["secret-2"], ["secret-1", "secret-2"])):
        text = exported(url, tmp_path / f"{number}.html", *runs, "--redact")
        assert SECRET not in text
        assert TOLD not in text
        assert "secrets are replaced by tokens" in text


def test_file_is_replaced_only_on_request(
    incident_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.html"
    file.write_text("mine")
    assert run(["run", "export", RUN, "--html", str(file), "--log", incident_url]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run(["run", "export", RUN, "--html", str(file), "--force", "--log", incident_url]) == 0
    assert run(["run", "export", "nobody", "--html", str(tmp_path / "none.html"), "--log", incident_url]) == 2
    assert not (tmp_path / "none.html").exists()
