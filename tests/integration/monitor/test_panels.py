"""The stack of `monitor up` scrapes real runs: every panel has data, or is named as one that needs what is not here."""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.schema import RunConfig
from glmforge.recipes.train import train
from glmforge_ops.monitor.dashboards.panels import DASHBOARDS, NOT_EVERYWHERE
from glmforge_ops.monitor.page.server import expression
from glmforge_ops.monitor.stack import Options, State, down, open_state, status, up
from helpers.command import Commands, commands_in, write_config
from helpers.packages import install_or_skip
from helpers.rl_runs import rl_config, write_prompts
from helpers.serving import Server, export_tiny_model, start_server
from helpers.tiny_data import TinyData

pytest.importorskip("prometheus_client")

PROGRAMS = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
"""Debian's packages have the same names."""
TESTS = Path(__file__).parents[2]
HOSTILE = '<img src=x onerror="canary=1">$.*\\'
_LIMIT_S = 420.0  # generous: several trainings on a busy machine


@dataclass(frozen=True)
class Monitored:
    """The stack in `directory`, and what it scrapes."""

    directory: Path
    commands: Commands
    server: Server
    began: float

    @property
    def state(self) -> State:
        return open_state(self.directory)

    def has_data(self, query: str) -> bool:
        """At some moment since the beginning: runs end while others still train."""
        now = time.time()
        found = self.state.prometheus().query_range(expression(query, "", 15), self.began, now, 2)
        return any(float(text) == float(text) for one in found for _, text in one["values"])

    def wait_for(self, queries: dict[str, str]) -> list[str]:
        """Names of the queries that get no data in time."""
        deadline = time.monotonic() + _LIMIT_S
        while (left := [name for name, query in queries.items() if not self.has_data(query)]) and (
            time.monotonic() < deadline
        ):
            self.server.complete(max_tokens=20)  # rates need something that grows
            time.sleep(0.5)  # between two questions; the outcome does not depend on it
        return left


def _corpus(directory: Path) -> str:
    documents = ({"text": f"Document {one} of many. " * 40} for one in range(20_000))
    (directory / "many.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    pipeline = directory / "pipeline.yaml"
    stages = [
        {"extract": {"inputs": [{"source": "a", "path": str(directory / "many.jsonl")}]}},
        {"clean": ["normalise"]},
    ]
    settings = {"output": str(directory / "runs/corpus"), "name": "corpus", "stages": stages}
    pipeline.write_text(json.dumps(settings | {"executors": {"local": {"workers": 1}}}))
    return str(pipeline)


def _sft(data: TinyData, output: Path, base: Path, observe: dict[str, Any]) -> RunConfig:
    said = [{"role": "user", "content": "What is two?"}, {"role": "assistant", "content": "One and one."}]
    (base.parent / "chat.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 50)
    sources = [{"name": "chat", "path": str(base.parent / "chat.jsonl")}]
    return data.run_config(
        output, name="sft", stage="sft", init_from=str(base), observe=observe,
        data={"tokenizer": str(data.tokenizer), "sources": sources},
        phases=[{"name": "sft", "steps": 100_000, "seq_len": 64, "batch_size": 4}],
    )  # fmt: skip


def _rename(run: Path, other: Path) -> None:
    """A later file of a stranger announces the run's address under a name that is none of ours."""
    told = json.loads((run / "exporter/rank-00000.json").read_text())
    (other / "exporter").mkdir(parents=True)
    (other / "exporter/rank-00000.json").write_text(json.dumps(told | {"run": HOSTILE, "started": "9999"}))


@pytest.fixture(scope="module")
def monitored(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """A run, one of two ranks, one of SFT, one of stage rl, a corpus run and a server, scraped every second."""
    install_or_skip(PROGRAMS, PROGRAMS)
    directory = tmp_path_factory.mktemp("monitored")
    runs = directory / "runs"
    runs.mkdir()
    exporting: dict[str, Any] = {"prometheus": {}, "progress": False, "tensorboard": False, "log_every": 1}
    long = [{"name": "main", "steps": 100_000, "seq_len": 32, "batch_size": 8}]
    alone = {"name": "alone", "phases": long, "checkpoint": {"every_steps": 20, "keep_last": 2}}
    spread = {"name": "spread", "phases": long, "parallel": {"dp_shard": 2}}
    base = directory / "base"
    short = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(base, phases=short, checkpoint={"every_steps": 2}))
    with commands_in(directory) as commands:
        server = start_server(commands, export_tiny_model(directory, tiny_data.tokenizer))
        also = (("serving", server.url.removeprefix("http://")),)
        began = time.time()
        up(Options(directory / "monitoring", (runs,), interval_s=1, also=also), say=lambda line: None)
        try:
            observed = exporting | {"evaluate_every": 20, "evaluate_tokens": 512}
            config = tiny_data.run_config(runs / "alone", **alone, observe=observed)
            first = commands.start("train", write_config(config))
            observed = exporting | {"communication_every": 2, "straggler_every": 2}
            config = tiny_data.run_config(runs / "spread", **spread, observe=observed)
            commands.start("train", write_config(config), ranks=2)
            commands.start("train", write_config(_sft(tiny_data, runs / "sft", base, exporting)))
            prompts = write_prompts(directory / "prompts.jsonl")
            settings = {"name": "rl", "init_from": str(base), "observe": exporting}
            config = rl_config(tiny_data, runs / "rl", prompts, steps=5_000, **settings)
            commands.start("train", write_config(config), environment={"PYTHONPATH": str(TESTS)})  # its reward is there
            commands.start("data", "run", _corpus(directory), "--metrics-port", "0")
            first.wait_until((runs / "alone/exporter/rank-00000.json").exists)
            _rename(runs / "alone", runs / "somebody's")
            yield Monitored(directory / "monitoring", commands, server, began)
        finally:
            down(directory / "monitoring")


def test_every_panel_has_data(monitored: Monitored) -> None:
    queries = {
        f"{dashboard.title}: {panel.title} {number}": query.expr
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        if panel.needs not in NOT_EVERYWHERE
        for number, query in enumerate(panel.queries)
    }
    assert len(queries) > 50
    assert monitored.wait_for(queries) == []
    told = status(monitored.state)
    assert {one["health"] for one in told["services"]} == {"ready", "running"}
    assert {one["job"] for one in told["targets"]} >= {"glmforge", "node", "serving"}
    stages = {
        one["metric"]["stage"] for one in monitored.state.prometheus().query("last_over_time(glmforge_step[10m])")
    }
    assert stages == {"pretrain", "sft", "rl"}


def test_a_run_is_selected_whatever_its_name(monitored: Monitored) -> None:
    assert monitored.wait_for({"step": "glmforge_step"}) == []
    assert monitored.wait_for({"run": f"glmforge_step{{run={json.dumps(HOSTILE)}}}"}) == []
    found = monitored.state.prometheus().query(expression('glmforge_step{run=~"$run"}', HOSTILE, 15))
    assert [one["metric"]["run"] for one in found] == [HOSTILE]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_the_page_in_a_browser(monitored: Monitored, scheme: Any, width: int) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    assert monitored.wait_for({"loss": f"glmforge_loss{{run={json.dumps(HOSTILE)}}}"}) == []
    page = monitored.commands.start("monitor", "page", "--directory", str(monitored.directory), "--port", "0")
    page.wait_until(lambda: "http://" in page.output)
    faults: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        opened.on("request", lambda one: None if one.url.startswith(url) else faults.append(one.url))
        url = page.output.strip()
        opened.goto(url)
        opened.wait_for_selector("html[data-ready]")
        opened.select_option("#run", HOSTILE)
        opened.wait_for_function("() => document.querySelector('section .legend li')?.textContent.includes('<img')")
        assert opened.locator("section[data-state=drawn] path.series").count() > 0
        assert opened.locator("main img").count() == 0
        assert opened.evaluate("typeof canary") == "undefined"
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        dark = opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 28)"
        assert dark == (scheme == "dark")
        browser.close()
    assert faults == []
