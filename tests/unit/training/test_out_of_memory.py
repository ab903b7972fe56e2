"""A run out of memory: a real failure to allocate, under a limit on the process, and the errors that are one."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.parameters import parameter_table
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.parallel.world import World
from glmforge.training.out_of_memory import EVENT, OutOfMemory, explaining_out_of_memory, is_out_of_memory, moment_of
from glmforge.training.source import Phase, StepInput
from glmforge.training.trainer import Trainer
from helpers.distributed import run_ranks
from helpers.models import run_config

SEQ_LEN = 256


def allocator_error() -> RuntimeError:
    """What torch raises when the host has no memory: no machine has 4 EiB."""
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        return error
    raise AssertionError("4 EiB were allocated")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"), True),
        (MemoryError(), True),
        (allocator_error(), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected
    wrapped = RuntimeError("failed to run forward")  # as pipeline stages do
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped) == expected


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    error = RuntimeError("shapes cannot be multiplied")
    with (
        pytest.raises(RuntimeError) as raised,
        explaining_out_of_memory(run_config(output_dir=str(tmp_path)), World.single("cpu")),
    ):
        raise error
    assert raised.value is error
    assert not RunDirectory(tmp_path).events.exists()


class _RunsOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise MemoryError


def test_a_backward_pass_is_told_from_a_forward_pass() -> None:
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(MemoryError) as raised:
        _RunsOut.apply(x).backward()
    assert moment_of(raised.value) == "backward pass"


def run_out(root: Path) -> str:
    """Two steps of a small run, the second one of more rows than this process may allocate; the error's words."""
    phase = {"name": "main", "steps": 2, "seq_len": SEQ_LEN, "batch_size": 256}
    config = run_config(output_dir=str(root), phases=[phase])
    world = World.single("cpu")
    with explaining_out_of_memory(config, world) as watch:
        trainer = Trainer(config, NativeBackend.build(config, world))
        watch.trainer = trainer
        described = Phase("main", NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers))
        trainer.step(StepInput(rows(1), described, lr=1e-3))
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**24, hard))
        try:
            trainer.step(StepInput(rows(256), described, lr=1e-3))
        except (RuntimeError, MemoryError):
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            raise
    return ""


def rows(number: int) -> Batch:
    ids = torch.zeros(number, SEQ_LEN, dtype=torch.int64)
    return Batch(ids, ids.clone(), ((SEQ_LEN,),) * number, (0,) * number, (0,) * number)


def words_when_it_runs_out(root: Path) -> str:
    try:
        return run_out(root)
    except OutOfMemory as error:
        return str(error)


def test_a_run_that_ran_out_leaves_an_event_and_says_what_would_help(tmp_path: Path) -> None:
    (words,) = run_ranks(words_when_it_runs_out, 1, tmp_path, init_group=False)
    (event,) = read_jsonl(RunDirectory(tmp_path).events)
    assert event["event"] == EVENT
    assert (event["step"], event["phase"], event["moment"], event["rank"]) == (1, "main", "forward pass", 0)
    config = run_config()
    elements = sum(row.size for row in parameter_table(config.model).values())
    assert event["weights"] == 4 * elements
    assert event["gradients"] == 0  # dropped after the first step
    assert event["weights"] < event["optimizer"] < 2 * event["weights"]
    assert 0 < event["peak"] < event["capacity"]
    assert event["planned"]["weights"] == event["weights"]
    # 65,536 tokens in one micro-batch: smaller ones help most.
    assert next(iter(event["changes"])) == "parallel.micro_batch_size=1"
    assert "GB with parallel.micro_batch_size=1" in words
    assert words == f"{EVENT}: {event['detail']}"
