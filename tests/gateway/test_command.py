"""`holdfast gateway` as a user sees it: flags, environment and file, `gateway check`, the screen, the examples."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import holdfast as library
from holdfast.cli import gateway_report
from tests.cli.test_process import OnTerminal
from tests.project.sources import ROOT
from tests.support.gateway import GatewayProcess, RunningGateway, body_of
from tests.support.model_server import ModelServer, model_server
from tests.support.screen import Screen
from tests.support.service import wait_until

NOWHERE = "http://127.0.0.1:9"


def holdfast(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_check_prints_what_it_found(upstream: ModelServer) -> None:
    ran = holdfast("gateway", "check", "--upstream", f"http://127.0.0.1:{upstream.port}")
    found = json.loads(
        holdfast("gateway", "check", "--upstream", f"http://127.0.0.1:{upstream.port}", "--json").stdout
    )

    assert ran.returncode == 0
    assert "is Ollama 0.12.9" in ran.stdout
    assert "big:cloud" in ran.stdout
    assert (found["type"], len(found["models"])) == ("ollama", 5)


def test_check_fails_if_the_model_server_does_not_answer() -> None:
    ran = holdfast("gateway", "check", "--upstream", NOWHERE)

    assert ran.returncode == 1
    assert "cannot be reached" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--upstream", "ftp://x"], "must be a URL"),
        (["--num-ctx", "llama"], "MODEL=N"),
        (["--fallback", "here"], "fallback: must be a URL"),
        (["--content-retention", "team-a=5"], "is not a duration"),
        (["--content-retention", "=5m"], "TENANT=DURATION"),
        (["--config", "/nonexistent.toml"], "cannot be read"),
        (["--host", "0.0.0.0", "--tokens", "off"], "without tokens"),
    ],
)
def test_wrong_settings_are_refused(arguments: list[str], problem: str, tmp_path: Path) -> None:
    ran = holdfast("--url", str(tmp_path / "gateway.db"), "gateway", *arguments)

    assert ran.returncode == 2
    assert problem in ran.stderr


def test_flags_go_before_the_environment_and_the_environment_before_the_file(
    upstream: ModelServer, tmp_path: Path
) -> None:
    here, file = f"http://127.0.0.1:{upstream.port}", tmp_path / "gateway.toml"
    file.write_text(f'upstream = "{NOWHERE}"\n')

    assert holdfast("gateway", "check", "--config", str(file)).returncode == 1
    assert holdfast("gateway", "check", "--config", str(file), HOLDFAST_GATEWAY_UPSTREAM=here).returncode == 0
    flag = holdfast("gateway", "check", "--upstream", here, HOLDFAST_GATEWAY_UPSTREAM=NOWHERE)
    assert flag.returncode == 0
    file.write_text("upstrem = 1\n")
    assert "'upstrem'" in holdfast("gateway", "check", "--config", str(file)).stderr


def test_a_file_pins_context_lengths_and_sigterm_ends_the_command(file: Path, upstream: ModelServer) -> None:
    settings = file.with_suffix(".toml")
    pairs = '[num_ctx]\n"llama:8b" = 1234\n[content_retention]\ndefault = "0s"\n'
    settings.write_text(f'residence = "2m"\nresident = "embed"\nfallback = "{NOWHERE}"\n{pairs}')
    gateway = GatewayProcess(file, f"http://127.0.0.1:{upstream.port}", "--config", str(settings))
    try:
        assert gateway.client.post("/api/chat", body_of("/api/chat")).status == 200
        embedded = gateway.client.post("/api/embed", {"model": "embed", "input": "text"})
        [job] = gateway.client.get("/jobs").json["jobs"]
        wait_until(lambda: gateway.client.get(f"/jobs/{job['id']}/artifacts").json["artifacts"] == [])
        gateway.process.send_signal(signal.SIGTERM)
        code = gateway.process.wait(30)
        assert gateway.process.stdout is not None
        stopped = json.loads(gateway.process.stdout.read())
    finally:
        gateway.kill()

    assert upstream.generations[0]["options"] == {"num_ctx": 1234}
    assert "Holdfast-Job" not in embedded.headers
    assert code == 0
    assert stopped == {"event": "stopped", "ended": {"done": 1}, "swaps": 0}


@pytest.mark.slow("it starts two gateways")
def test_a_second_gateway_on_the_same_queue_takes_over(file: Path, upstream: ModelServer) -> None:
    url = f"http://127.0.0.1:{upstream.port}"
    first = GatewayProcess(file, url)
    second = GatewayProcess(file, url)
    try:
        assert second.client.post("/api/chat", body_of("/api/chat")).status == 200
        wait_until(lambda: first.process.poll() is not None)
    finally:
        first.kill()
        second.kill()

    assert "has taken over" in first.log.read_text()


def test_the_screen_shows_models_queue_and_swaps(gateway: RunningGateway, upstream: ModelServer) -> None:
    gateway.generate(options={"num_ctx": 2048})
    upstream.script.hold = True
    answers = [gateway.open()]
    wait_until(lambda: len(upstream.generations) == 2)
    answers += [gateway.open(model="qwen:7b") for _ in range(2)]
    wait_until(lambda: len(gateway.jobs("ready")) == 2)
    shown = gateway_report.shown(gateway.gateway)
    about = gateway_report.GatewayAbout("http://here", "http://there", "gateway.db", "no tokens needed")
    console = Console(width=100, file=io.StringIO())
    console.print(gateway_report.draw(about, shown, 90, 100))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    upstream.script.hold = False

    assert [answer.response.status for answer in answers] == [200] * 3
    assert "running 1   waiting 2   done 1" in text
    assert "1 swap" in text
    assert any(line.split() == ["llama:8b", "loaded", "1", "0"] for line in text.splitlines())
    assert any(line.split() == ["qwen:7b", "0", "2"] for line in text.splitlines())


def test_the_example_chats_through_the_gateway(gateway: RunningGateway) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "gateway_chat.py"), "llama:8b"],
        input="first\nsecond\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "OLLAMA_HOST": f"http://127.0.0.1:{gateway.port}"},
    )

    assert ran.stdout.splitlines() == [
        "first-0 éfirst-1 éfirst-2 éfirst-3 éfirst-4 é",
        "second-0 ésecond-1 ésecond-2 ésecond-3 ésecond-4 é",
    ]
    assert ran.stderr.count("[job ") == 2


def test_a_server_with_the_api_of_openai_gets_many_requests_at_once(file: Path) -> None:
    from tests.support.gateway import running_gateway

    with (
        model_server() as upstream,
        running_gateway(str(file), f"http://127.0.0.1:{upstream.port}", upstream_type="openai") as gateway,
    ):
        upstream.script.hold = True
        answers = [gateway.open("/v1/completions", model=model) for model in ("llama:8b", "qwen:7b")]
        wait_until(lambda: len(upstream.generations) == 2)
        upstream.script.hold = False

        assert [answer.response.status for answer in answers] == [200] * 2


def test_log_lines_and_typed_keys_do_not_smear_the_live_screen(upstream: ModelServer, tmp_path: Path) -> None:
    with library.connect(str(tmp_path / "gateway.db")) as queue:
        queue.enqueue("other.kind")
    server = f"http://127.0.0.1:{upstream.port}"
    ran = OnTerminal(tmp_path, "--url", "gateway.db", "gateway", "--upstream", server, "--port", "0")
    ran.read_until("unserved jobs")
    ran.type("\n\n")
    drawn = ran.seen.count("up ")
    while ran.seen.count("up ") < drawn + 3:
        ran.seen += ran._part()
    ran.type("\x03")
    assert ran.finish() == 0

    screen = Screen(100, 24)
    screen.write(ran.seen)
    [first, *logged, stopped] = filter(None, screen.lines)
    assert first.startswith("gateway for")
    assert "1 job of other.kind in lane default: no live worker takes it" in " ".join(logged)
    assert stopped.startswith("gateway stopped")
    assert not any("swaps" in line for line in logged)
