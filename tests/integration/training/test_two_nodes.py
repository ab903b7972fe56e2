"""Two nodes started by hand with the scripts of examples/two_nodes: two launches on this machine stand for them."""

import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import glmforge
from glmforge.checkpoint.convert import export_hf
from glmforge.model.transformer import GlmMoe
from helpers.command import Commands, Started, own_lines, write_config
from helpers.distributed import free_port
from helpers.models import randomize_, tiny_config
from helpers.prepared import programs
from helpers.tiny_data import VOCAB_SIZE, TinyData

SCRIPTS = Path(__file__).parents[3] / "examples" / "two_nodes"
HOST = socket.gethostname()
PHASES = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 4}]


Mistake = Callable[[Path, TinyData], tuple[list[str], dict[str, str], str]]
"""Makes what node 1 has otherwise; returns its settings, its environment and what is said of it."""


@dataclass
class Nodes:
    """Starts nodes with the same configuration, each with logs of its own."""

    commands: Commands
    config: str
    port: int

    def start(self, number: int, *settings: str, wait_s: int = 120, **environment: str) -> Started:
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "GPUS": "1", "WAIT_S": str(wait_s)}
        given |= {"PYTHON": str(programs() / "python"), "LOGS": str(self.logs(number))}
        script = str(SCRIPTS / f"launch_node{number}.sh")
        return self.commands.start_program(script, self.config, *settings, environment=given | environment)

    def logs(self, number: int) -> Path:
        return self.commands.directory / f"logs-{number}"


@pytest.fixture
def nodes(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> Nodes:
    return Nodes(commands, write_config(tiny_data.run_config(tmp_path / "run", phases=PHASES)), free_port())


def test_a_node_waits_for_the_other_and_both_train(nodes: Nodes, tmp_path: Path) -> None:
    second = nodes.start(1)
    waiting = f"127.0.0.1:{nodes.port}: Connection refused; waiting for rank 0, "
    second.wait_until(lambda: waiting in second.output)
    first = nodes.start(0)
    assert (first.wait(), second.wait()) == (0, 0), first.output + second.output
    assert "2 steps" in first.output
    assert waiting in (nodes.logs(1) / "rank-1.log").read_text()
    assert "2 steps" in (nodes.logs(0) / "rank-0.log").read_text()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def other_revision(directory: Path, tiny_data: TinyData) -> tuple[list[str], dict[str, str], str]:
    shutil.copytree(Path(glmforge.__file__).parent, directory / "glmforge")
    with (directory / "glmforge" / "errors.py").open("a") as file:
        file.write("# edited\n")
    return [], {"PYTHONPATH": str(directory)}, f"node {HOST} (rank 1) differs from node {HOST} (rank 0): glmforge is "


def other_data(directory: Path, tiny_data: TinyData) -> tuple[list[str], dict[str, str], str]:
    settings = [f"data.sources.0.path={tiny_data.held_out}"]
    return settings, {}, f"data: the nodes do not see the same data: node {HOST} (rank 1) has different contents in"


def other_weights(directory: Path, tiny_data: TinyData) -> tuple[list[str], dict[str, str], str]:
    config = tiny_config(vocab_size=VOCAB_SIZE)
    model = GlmMoe(config)
    for seed, name in enumerate(("first", "second")):
        randomize_(model, seed)
        export_hf(model.state_dict(), config, directory / name, dtype=torch.float32)
    return [f"init_from={directory}/second"], {}, f"the nodes do not see the same files: node {HOST} (rank 1) has other"


@pytest.mark.parametrize(
    "mistake", [other_data, *(pytest.param(other, marks=pytest.mark.full) for other in (other_revision, other_weights))]
)
def test_a_node_that_has_something_else_is_named_on_both(
    nodes: Nodes, tiny_data: TinyData, tmp_path: Path, mistake: Mistake
) -> None:
    settings, environment, words = mistake(tmp_path / "node-1", tiny_data)
    common = [f"init_from={tmp_path}/node-1/first"] if mistake is other_weights else []
    started = nodes.start(0, *common), nodes.start(1, *settings, **environment)
    for node in started:
        assert node.wait() == 1
        assert "Traceback" not in node.output
        (line,) = own_lines(node.output)
        assert words in line
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("number", "environment", "words"),
    [
        (0, {"MASTER_ADDR": "no-such-host.invalid"}, "does not lead to"),
        (0, {}, "rank 1 did not come to 127.0.0.1:"),
        (1, {}, "did not reach rank 0 at 127.0.0.1:"),
    ],
    ids=["wrong address", "too late", "closed port"],
)
def test_a_node_alone_says_what_it_waited_for(
    nodes: Nodes, number: int, environment: dict[str, str], words: str
) -> None:
    node = nodes.start(number, wait_s=1, **environment)
    assert node.wait() == 1
    assert "Traceback" not in node.output
    (line,) = own_lines(node.output)
    assert words in line


def test_what_a_script_needs_is_asked_for(commands: Commands) -> None:
    script = str(SCRIPTS / "launch_node1.sh")
    alone = commands.start_program(script, environment={"MASTER_ADDR": "127.0.0.1"})
    assert alone.wait() == 1
    assert alone.output.startswith("node 1: give a configuration")
    lost = commands.start_program(script, "run.yaml", environment={"GPUS": "1", "MASTER_ADDR": ""})
    assert lost.wait() == 1
    assert lost.output.startswith("node 1: MASTER_ADDR is not set: ")
