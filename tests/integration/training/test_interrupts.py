"""Ctrl-C at a real command: what is saved, what is said, with which status it ends."""

import socket
from pathlib import Path

import pytest

from glmforge.observe.record_files import read_jsonl
from helpers.command import Commands, num_lines, own_lines, write_config
from helpers.distributed import free_port
from helpers.tiny_data import TinyData

SAYS_FIRST = "glmforge: interrupted: finishing this step, then saving; press again to exit without saving"


def config_in(tiny_data: TinyData, tmp_path: Path, steps: int, batch_size: int = 8) -> str:
    """A run that would save at its end only."""
    phases = [{"name": "main", "steps": steps, "seq_len": 32, "batch_size": batch_size}]
    return write_config(tiny_data.run_config(tmp_path / "run", phases=phases))


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_an_interrupted_run_goes_on_where_it_stopped(
    tiny_data: TinyData, tmp_path: Path, commands: Commands, ranks: int
) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    first = commands.start("train", config, ranks=ranks)
    first.wait_for_steps(run, 5)
    first.interrupt()
    assert first.wait() == (130 if ranks == 1 else 1)  # torchrun's own status
    stopped = num_lines(run / "metrics.jsonl")
    says_last = f"glmforge: tiny: interrupted after step {stopped:,}; saved, run it again to resume"
    assert own_lines(first.output) == [SAYS_FIRST, says_last]
    event = read_jsonl(run / "events.jsonl")[-1]
    assert (event["event"], event["step"]) == ("preempted", stopped)
    assert event["detail"].startswith(f"SIGINT on {ranks} of {ranks} ranks; saved ")
    again = commands.start("train", config, f"phases.0.steps={stopped + 2}", ranks=ranks)
    assert again.wait() == 0, again.output[-3000:]
    assert [record["step"] for record in read_jsonl(run / "metrics.jsonl")] == list(range(1, stopped + 3))


def test_a_second_interrupt_ends_at_once(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """In its first step, which lasts for minutes."""
    config = config_in(tiny_data, tmp_path, 3, batch_size=65536)
    started = commands.start("train", config, "parallel.micro_batch_size=16")
    run = tmp_path / "run"
    started.wait_until(lambda: (run / "metrics.jsonl").exists())  # written when the hook for signals is there
    started.interrupt()
    started.wait_until(lambda: SAYS_FIRST in started.output)
    started.interrupt()
    assert started.wait() == 130
    assert own_lines(started.output)[-1].startswith(
        "glmforge: interrupted again: exiting without saving; run it again to resume"
    )
    assert not list(run.glob("checkpoints/step-*"))


def test_an_interrupt_while_the_ranks_gather_is_one_line(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    """The main thread waits in C++ for a rank that does not come."""
    port = free_port()
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = commands.start("train", config_in(tiny_data, tmp_path, 5), environment=environment)

    def serves() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    started.wait_until(serves)
    started.interrupt()
    assert started.wait() == 130
    assert "Traceback" not in started.output
    assert own_lines(started.output) == [
        "glmforge: interrupted; run it again to resume from the last checkpoint, if there is one"
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.chaos
def test_the_demo_passes_it_on_and_waits(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    script = tmp_path / "script.py"
    script.write_text(
        "import math\nimport sys\nfrom pathlib import Path\n"
        "from glmforge.config import load_config\nfrom glmforge.errors import GlmforgeError\n"
        "from glmforge.recipes.demo.training import Watched, train_to_the_end\n"
        "watched = Watched(load_config(sys.argv[1]), Path(sys.argv[1]), num_threads=1)\n"
        "try:\n    train_to_the_end(watched, math.inf, may_stop=False)\n"
        "except GlmforgeError as error:\n    print(f'glmforge: {error}')\n    sys.exit(error.exit_code)\n"
    )
    demo = commands.start_python(str(script), config)
    demo.wait_for_steps(run, 5)
    demo.interrupt()
    assert demo.wait() == 130
    lines = own_lines(demo.output)
    assert lines[0] == SAYS_FIRST
    assert "saved, run it again to resume" in lines[1]
    assert lines[2] == (
        f"glmforge: interrupted; 'glmforge train {config}' resumes the training; running the demo again starts over"
    )
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
