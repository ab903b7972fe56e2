"""The monitoring stack: what is refused, what is written, and which processes are ended."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge.runtime.process import identify
from glmforge_ops.monitor import programs, stack
from glmforge_ops.monitor.page.server import expression, legend
from glmforge_ops.monitor.stack import Options, Service, State, down, read_state, up
from glmforge_ops.monitor.stack_files import compose, prometheus_config, write_grafana


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "0.0.0.0"}, "pass --web-config and --login"),
        ({"host": "::"}, "pass --web-config and --login"),
        ({"host": "localhost"}, "give an IP address"),
        ({"login": Path("x")}, "belong together"),
        ({"runs": (Path("none"),)}, "no such directory"),
        ({"also": (("gpu", "10.0.0.7"),)}, "as in gpu=10.0.0.7:9400"),
        ({"also": (("glmforge", "10.0.0.7:1"),)}, "write node, gpu or serving"),
        ({"webhook": "no url"}, "not a URL"),
    ],
)
def test_what_is_refused_starts_nothing(changes: dict[str, object], words: str, runs: Path, tmp_path: Path) -> None:
    options = Options(**({"directory": tmp_path / "m", "runs": (runs,)} | changes))  # type: ignore[arg-type]
    with pytest.raises(GlmforgeError, match=words):
        up(options, say=lambda line: None)
    assert not (tmp_path / "m/state.json").exists()


def test_without_prometheus_it_says_how_to_get_it(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match=r"apt-get install prometheus .*--install.*--containers"):
        up(Options(tmp_path / "m", (runs,)), say=lambda line: None)


def test_nothing_is_installed_but_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text(f'#!/bin/sh\necho "$RUNLEVEL $@" > {tmp_path}/called\n')
    fake.chmod(0o755)
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift; exec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    programs.install([one for one in programs.PROGRAMS if one.name in ("node", "grafana")])
    expected = "1 install --yes --no-install-recommends prometheus-node-exporter"
    assert (tmp_path / "called").read_text().strip() == expected


def test_down_leaves_a_process_alone_that_took_the_id(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        earlier = identify(stranger.pid)
        earlier = earlier.model_copy(update={"began": earlier.began - 1})
        services = {"prometheus": Service(port=1, process=earlier), "node": Service(port=2, process=identify(ours.pid))}
        (tmp_path / "state.json").write_text(State(services=services).model_dump_json())
        assert down(tmp_path) == ["node"]
        assert stranger.poll() is None
        assert not os.path.exists(f"/proc/{ours.pid}") or ours.poll() is not None  # noqa: PTH110
    finally:
        for process in (stranger, ours):
            process.kill()
            process.wait()
    with pytest.raises(HostError, match="no monitoring there"):
        down(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"services": {}}', '{"services": {"prometheus": {"port": "x"}}}'])
def test_a_damaged_state_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(HostError, match=r"state\.json"):
        read_state(tmp_path)


def test_two_commands_in_a_directory(runs: Path, tmp_path: Path) -> None:
    with stack._alone(tmp_path), pytest.raises(HostError, match="another command is at work"):
        up(Options(tmp_path, (runs,), containers=True), say=lambda line: None)


def test_a_login_is_one_line(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "login"
    for text in ("", "user", "user:", "a:b\nc:d"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="user:password"):
            up(Options(tmp_path / "m", (runs,), login=file, web_config=file), say=lambda line: None)


def test_grafana_has_a_password_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk")
    for name in ("a", "b"):
        write_grafana(tmp_path / name, "127.0.0.1", 3000, 9090, ("reader", "s3cret"))
    files = [tmp_path / name / "grafana/admin-password" for name in ("a", "b")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    first, second = (file.read_text() for file in files)
    assert first != second
    assert len(first) >= 32
    ini = (tmp_path / "a/grafana/grafana.ini").read_text()
    assert "[auth.anonymous]\nenabled = false" in ini
    assert first not in ini
    source = tmp_path / "a/grafana/provisioning/datasources/glmforge.yml"
    assert source.stat().st_mode & 0o077 == 0
    assert yaml.safe_load(source.read_text())["datasources"][0]["basicAuthUser"] == "reader"


def test_containers_are_pinned_and_listen_where_binaries_do(tmp_path: Path) -> None:
    services = {name: Service(port=port) for name, port in (("prometheus", 1), ("alertmanager", 2), ("node", 3))}
    options = Options(tmp_path, (), containers=True)
    arguments = stack.commands(options, State(services=services), config=f"{tmp_path}/prometheus.yml")
    text = compose(tmp_path, arguments, "1000:1000")
    made = yaml.safe_load(text)["services"]
    assert all(one["image"].rpartition(":")[2][1:].count(".") == 2 for one in made.values())
    addresses = [word for one in made.values() for word in one["command"] if "listen-address=1" in word]
    assert addresses == [f"--web.listen-address=127.0.0.1:{port}" for port in (1, 2, 3)]
    if (checker := shutil.which("check-jsonschema")) is not None:
        file = tmp_path / "compose.yml"
        file.write_text(text)
        subprocess.run([checker, "--builtin-schema", "vendor.compose-spec", str(file)], check=True)


def test_the_configuration_of_prometheus() -> None:
    config = prometheus_config(
        {"prometheus": 1, "alertmanager": 2, "node": 3}, 15, [("gpu", "h:9400"), ("node", "h:9100")]
    )
    jobs = {one["job_name"]: one["static_configs"][0]["targets"] for one in config["scrape_configs"][1:]}
    assert jobs == {"node": ["127.0.0.1:3", "h:9100"], "gpu": ["h:9400"]}
    assert json.dumps(config["alerting"]).count("127.0.0.1:2") == 1


@pytest.mark.parametrize(
    ("run", "quoted"),
    [("", ".*"), ("a-b_1", "a-b_1"), ("a.b", r"a\\.b"), ('"} or x{a="', r"\"\\} or x\\{a=\""), ("é\n", r"é\n")],
)
def test_a_runs_name_in_a_query(run: str, quoted: str) -> None:
    assert expression('m{run=~"$run"}', run, 1) == f'm{{run=~"{quoted}"}}'


def test_a_window_holds_several_points() -> None:
    assert expression("rate(m[$__rate_interval])", "", 1) == "rate(m[60s])"
    assert expression("rate(m[$__rate_interval])", "", 100) == "rate(m[400s])"
    assert (
        legend("{{run}} {{none}} {{__name__}}", {"run": "a", "__name__": "glmforge_comm_seconds_ep"})
        == "a comm_seconds_ep"
    )
