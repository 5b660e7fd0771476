"""The HTTP API under the pages: each answer equals the output of the command."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from refold.explorer.cli.main import run
from refold.explorer.demo.desk import RUN
from refold.explorer.web.api import ENDPOINTS
from refold.explorer.web.site import SLOW_ENDPOINTS
from refold_tests.explored import CONFIG, FORK, READER, Explored

pytestmark = pytest.mark.outside

ASKED: dict[str, tuple[str, Sequence[str]]] = {
    "runs": ("/api/runs?outcome=failed", ["runs", "--outcome", "failed"]),
    "runs-flagged": ("/api/runs?flagged=true", ["runs", "--flagged"]),
    "run": (f"/api/run/{RUN}", ["run", "show", RUN]),
    "steps": (f"/api/steps/{RUN}?step=2", ["run", "steps", RUN, "--step", "2"]),
    "knew": (f"/api/knew/reader?run={READER}&every=1", ["knew", "reader", "--run", READER, "--all"]),
    "state": (f"/api/state/{CONFIG}?at=v1", ["state", CONFIG, "--at", "v1"]),
    "find": ("/api/find?text=acme", ["find", "acme"]),
    "history": (f"/api/history/{CONFIG}?since=@deploy-1", ["history", CONFIG, "--since", "@deploy-1"]),
    "why": (f"/api/why/{CONFIG}.rate_limit?depth=1", ["why", f"{CONFIG}.rate_limit", "--depth", "1"]),
    "diff": ("/api/diff?a=@deploy-1&b=now", ["diff", "@deploy-1", "now"]),
    "compare": (f"/api/compare?a={RUN}&b={FORK}", ["run", "compare", RUN, FORK]),
    "markers": ("/api/markers", ["markers"]),
    "effects": (f"/api/effects?run={RUN}", ["effects", "list", "--run", RUN]),
    "effects-before": ("/api/effects?at=@deploy-1", ["effects", "list", "--at", "@deploy-1"]),
    "agents": ("/api/agents", ["agents", "list"]),
    "approvals": ("/api/approvals?all=1", ["approvals", "--all"]),
    "healings": ("/api/healings", ["heal", "--report"]),
    "deadletters": ("/api/deadletters", ["deadletters", "list"]),
    "verify": ("/api/verify", ["verify"]),
    "snapshots": ("/api/snapshots", ["snapshot", "--list"]),
    "retain": ("/api/retain", ["retain"]),
    "tail": ("/api/tail?from=@deploy-1", ["tail", "--from", "@deploy-1"]),
    "rebuild": ("/api/rebuild?at=@deploy-1", ["rebuild", "--at", "@deploy-1"]),
    "rebuild-type": ("/api/rebuild?type=tool_config", ["rebuild", "--type", "tool_config"]),
}


def test_every_endpoint_is_called() -> None:
    assert {each.partition("-")[0] for each in ASKED} | {"doctor"} == set(ENDPOINTS)
    assert set(ENDPOINTS) > SLOW_ENDPOINTS


@pytest.mark.parametrize("name", ASKED)
def test_api_answers_what_the_command_prints(
    pages: Explored, incident_url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, command = ASKED[name]
    run([*command, "--log", incident_url, "--json"])
    out = capsys.readouterr().out
    printed = [json.loads(line) for line in out.splitlines()] if command[0] == "tail" else json.loads(out)
    found = pages.ask(target)
    assert found.status == 200
    assert found.headers["Content-Type"] == "application/json"
    assert found.json == printed


def test_doctor_endpoint_equals_the_command(
    pages: Explored, incident_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["doctor", "--log", incident_url, "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = pages.ask("/api/doctor").json
    assert [each["subject"] for each in found["findings"]] == [each["subject"] for each in printed["findings"]]


def test_description_names_every_endpoint(pages: Explored) -> None:
    described = pages.ask("/api/openapi.json").json
    assert described["openapi"].startswith("3.1")
    for name, endpoint in ENDPOINTS.items():
        path = f"/api/{name}" + (f"/{{{endpoint.argument}}}" if endpoint.argument else "")
        operation = described["paths"][path]["get"]
        named = {each["name"] for each in operation["parameters"]}
        assert named == {each.name for each in endpoint.parameters} | ({endpoint.argument} - {""})


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("/api/nothing", 400, "there are runs"),
        ("/api/runs/x", 400, "alone"),
        ("/api/run", 400, "RUN"),
        ("/api/runs?colour=red", 400, "colour"),
        ("/api/runs?limit=many", 400, "limit"),
        ("/api/runs?flagged=maybe", 400, "flagged"),
        ("/api/state/document/nobody", 404, "nobody"),
        ("/api/diff?a=now", 400, "needs the parameter b"),
        (f"/api/state/{CONFIG}?clock=wall", 400, "clock"),
    ],
    ids=["name", "argument", "no-argument", "parameter", "number", "boolean", "entity", "required", "choice"],
)
def test_errors_are_reported(pages: Explored, target: str, status: int, says: str) -> None:
    found = pages.ask(target)
    assert says in found.json["error"]
    assert found.status == status
