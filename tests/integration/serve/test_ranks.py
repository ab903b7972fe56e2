"""A server whose model several processes share, started as a batch script starts them: each one's end can be seen."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from helpers.command import Commands, Started, own_lines
from helpers.serving import KEEPS_ON, Server, address_in

GREEDY = {"temperature": 0, "max_tokens": 24, "logprobs": 3, "ignore_eos": True}
PROMPTS = ["def main", "import os\n", "x" * 200, "def main(arguments):\n    return"]

Start = Callable[..., tuple[Server, Started]]


@pytest.fixture
def ranks(served_model: Path, commands: Commands) -> Start:
    """Starts two ranks; the server, and the rank that follows."""

    def start(*options: str) -> tuple[Server, Started]:
        words = ("serve", str(served_model), "--port", "0", "--cache-gib", "0.05", *options)
        first, second = commands.start_by_hand(2, *words)
        return Server(first, address_in(first)), second

    return start


def answers_of(server: Server) -> list[Any]:
    """To all prompts at once: texts, tokens and log-probabilities."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(lambda prompt: server.complete(prompt=prompt, **GREEDY).json()["choices"][0], PROMPTS))
    sampled = server.complete(temperature=1.0, seed=3, n=3, max_tokens=20).json()["choices"]
    return [*found, [choice["text"] for choice in sampled]]


@pytest.mark.parametrize("parallel", ["ep=2", "tp=2"])
def test_answers_are_those_of_one_process(server: Server, ranks: Start, parallel: str) -> None:
    shared, follower = ranks("--parallel", parallel)
    *expected, sampled = answers_of(server)
    *found, its_sampled = answers_of(shared)
    for one, other in zip(expected, found, strict=True):
        assert other["text"] == one["text"]
        assert other["logprobs"]["tokens"] == one["logprobs"]["tokens"]
        assert other["logprobs"]["token_logprobs"] == pytest.approx(one["logprobs"]["token_logprobs"], abs=1e-5)
    assert its_sampled == sampled
    with shared.streaming(**KEEPS_ON) as lines:  # a client that goes
        next(lines)
    shared.wait_for_idle()
    for one in (shared.started, follower):
        one.process.send_signal(signal.SIGTERM)
    assert (shared.started.wait(), follower.wait()) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_all_ranks_end_behind_the_last_answer(ranks: Start, number: int) -> None:
    server, follower = ranks("--parallel", "ep=2", "--drain-seconds", "100")
    with server.streaming(max_tokens=500, ignore_eos=True) as lines:
        first = next(lines)
        for one in (server.started, follower):
            one.process.send_signal(number)
        *rest, done = lines
    assert done == "data: [DONE]"
    assert "error" not in "".join([first, *rest])
    assert (server.started.wait(), follower.wait()) == (0, 0)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_ends_the_server(ranks: Start, rank: int, is_busy: bool) -> None:
    server, follower = ranks("--parallel", "ep=2")
    lost, left = (server.started, follower) if rank == 0 else (follower, server.started)
    if is_busy:
        with server.streaming(**KEEPS_ON) as lines:
            next(lines)
            os.kill(lost.process.pid, signal.SIGKILL)
            if rank == 1:
                *_, error, done = lines
                assert "lost one of its ranks" in error
                assert done == "data: [DONE]"
            else:
                with pytest.raises(Exception, match=r"closed|reset|peer"):
                    list(lines)
    else:
        os.kill(lost.process.pid, signal.SIGKILL)
    assert left.wait() == 1
    (line,) = own_lines(left.output)
    assert f"rank {rank} on " in line
    assert "the server has ended" in line
    assert "Traceback" not in left.output


def test_under_torchrun(commands: Commands, served_model: Path) -> None:
    """Which ends with an error of its own as soon as one rank is lost."""
    words = ("serve", str(served_model), "--port", "0", "--cache-gib", "0.05", "--parallel", "tp=2")
    started = commands.start(*words, ranks=2)
    server = Server(started, address_in(started))
    assert server.complete(max_tokens=2).status_code == 200
    os.kill(started.workers("serve")[1], signal.SIGKILL)
    assert started.wait() != 0
    assert [line for line in own_lines(started.output) if "rank 1 on " in line], started.output


def test_refusals(commands: Commands, served_model: Path) -> None:
    for words, reason in (
        (("--parallel", "dp_shard=2"), "2 data ranks"),
        (("--parallel", "tp=3"), "tp"),
        (("--parallel", "ep=2", "--adapter", "a=b"), "adapters are not served with --parallel"),
    ):
        first, second = commands.start_by_hand(2, "serve", str(served_model), *words)
        assert first.wait() != 0
        assert second.wait() != 0
        assert reason in first.output
        assert "Traceback" not in first.output + second.output
