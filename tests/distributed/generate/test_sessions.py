"""Text generated between training steps: it follows the weights, takes the memory that it states, and changes nothing
of the training."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.model import GlmMoe
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from glmforge.training.step import train_step
from helpers.distributed import run_ranks
from helpers.equivalence import Case, batches, whole_state

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
    (2, {"pp": 2, "micro_batch_size": 2}),
    (2, {"dp_shard": 2, "recompute": "full", "reshard_after_forward": False}),
]
PARAMS = SamplingParams(max_new_tokens=8)


def named(cases: list[tuple[int, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(size, parallel, id=Case(parallel, size).name) for size, parallel in cases]


class Training:
    """A few steps on this rank."""

    def __init__(self, config: RunConfig, world: World) -> None:
        self.backend = NativeBackend.build(config, world)
        phase = config.phases[0]
        self.model.set_capacity_factor(phase.capacity_factor)
        self.objective = NextTokenObjective(phase, config.model.num_nextn_predict_layers)
        share = phase.batch_size // world.layout.data_ranks
        mine = [batch.rows(world.data_rank * share, (world.data_rank + 1) * share) for batch in batches(config)]
        self.batches = iter([batch.micro_batches(world.layout.micro_batch_size or share) for batch in mine])
        self.losses: list[dict[str, float]] = []

    @property
    def model(self) -> ParallelModel:
        return self.backend.model

    def step(self) -> None:
        result = train_step(
            self.backend, self.objective, next(self.batches), lr=1e-2, grad_clip=0.5, router_bias_rate=1e-2
        )
        self.losses.append(result.losses | {"grad_norm": float(result.grad_norm)})


def engine_of(runner: ShardedModel) -> Engine:
    return Engine(runner, EngineConfig(cache_bytes=32 * runner.page_bytes(4), page_size=4))


def rank_trains(config: RunConfig, generates: bool) -> tuple[Any, dict[str, Tensor]]:
    """Losses and final state of three steps, with or without text in between."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        torch.manual_seed(3)
        training = Training(config, world)
        runner = ShardedModel(training.model)
        for _ in range(3):
            training.step()
            if generates:
                with runner.session():
                    engine_of(runner).generate([[1, 2, 3, world.data_rank]], PARAMS)
                assert all(part.training for part in training.model.parts)
        state = whole_state(training.model.state_dict() | training.backend.optimizer.state_dict())
        return (training.losses, torch.rand(1).item()), state if world.is_main else {}


@pytest.mark.parametrize(
    ("num_ranks", "parallel"),
    [pytest.param(*LAYOUTS[0], marks=pytest.mark.full, id=Case(LAYOUTS[0][1], 4).name), *named(LAYOUTS[1:])],
)
def test_training_is_the_same_to_the_last_bit(num_ranks: int, parallel: dict[str, Any]) -> None:
    config = Case(parallel, num_ranks, phase={"capacity_factor": 1.0}).config(single=False)
    with_text = run_ranks(rank_trains, num_ranks, config, True)
    without = run_ranks(rank_trains, num_ranks, config, False)
    assert [facts for facts, _ in with_text] == [facts for facts, _ in without]
    states = with_text[0][1], without[0][1]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def rank_goes_on(config: RunConfig) -> None:
    """A request that meets other weights in its middle, within a session and between two."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        training = Training(config, world)
        masters = training.model.state_dict()
        prompt = [7, 8, 9, 10 + world.data_rank]
        runner = ShardedModel(training.model)
        engine = engine_of(runner)
        engine.add(prompt, SamplingParams(max_new_tokens=9))
        (sequence,) = engine.scheduler.sequences

        def three_tokens() -> None:
            """They are the likeliest behind all before them, to a model of the weights as they are."""
            before = list(sequence.tokens)
            for _ in range(3):
                engine.step()
                engine.check()
            whole = GlmMoe(config.model)
            whole.load_state_dict(whole_state(masters))
            for _ in range(3):
                before.append(int(whole.logits(torch.tensor([before]))[0, -1].argmax()))
            assert sequence.tokens == before

        with runner.session():
            three_tokens()
            with torch.no_grad():
                for name, master in masters.items():
                    if name.endswith("o_proj.weight"):
                        master.neg_()
            engine.weights_changed()
            three_tokens()
        training.step()
        with runner.session():
            engine.weights_changed()
            three_tokens()
        assert sequence.finished == "length"


@pytest.mark.parametrize(("num_ranks", "parallel"), named(LAYOUTS))
def test_requests_go_on_under_other_weights(num_ranks: int, parallel: dict[str, Any]) -> None:
    run_ranks(rank_goes_on, num_ranks, Case(parallel, num_ranks).config(single=False))


class Gathered:
    """Counts the bytes of weights that are there besides the masters."""

    def __init__(self, model: ParallelModel) -> None:
        self.model = model
        self.masters = list(model.parameters())
        self.known = {id(master) for master in self.masters}

    def num_bytes(self) -> int:
        return sum(local_chunk(new)[0].nbytes for new in self.model.parameters() if id(new) not in self.known)

    def num_bytes_after_a_pass(self) -> int:
        (part,) = self.model.parts
        with torch.no_grad():
            part(torch.ones(2, 8, dtype=torch.int64))
        return self.num_bytes()


def rank_measures(config: RunConfig) -> tuple[int, int]:
    """Bytes of weights that a session says that it keeps, and that there are; none is left, and training frees again
    what it gathers."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        model = build_model(config, world)
        gathered, runner = Gathered(model), ShardedModel(model)
        in_training = gathered.num_bytes_after_a_pass()
        with runner.session():
            engine_of(runner).generate([[1, 2, 3]], PARAMS)
            made = gathered.num_bytes()
        assert gathered.num_bytes() == 0
        assert gathered.num_bytes_after_a_pass() == in_training
        return runner.weight_bytes.kept, made


@pytest.mark.parametrize(
    ("num_ranks", "parallel"),
    named([(4, {"dp_shard": 2, "tp": 2, "ep": 2}), (2, {"dp_shard": 2})]),
)
def test_memory_is_what_is_stated(num_ranks: int, parallel: dict[str, Any]) -> None:
    """In bf16, where also what FSDP leaves alone is kept in another dtype than the masters'."""
    config = Case(parallel, num_ranks).config(single=False)
    config = config.model_copy(update={"precision": config.precision.model_copy(update={"compute": "bf16"})})
    for stated, made in run_ranks(rank_measures, num_ranks, config):
        assert stated == made > 0


def rank_compares(config: RunConfig) -> tuple[list[str], list[str], list[str], float]:
    """What differs from the trained weights: in a session, after weights were changed without a word, and with one; and
    by how much the change moves what the engine says."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        training = Training(config, world)
        training.step()
        runner = ShardedModel(training.model)
        masters = training.model.state_dict()
        with runner.session():
            engine = engine_of(runner)
            params = SamplingParams(max_new_tokens=2, logprobs=0)
            ((before,),) = engine.generate([[1, 2, 3]], params)
            whole = runner.differing_weights()
        with runner.session():
            engine = engine_of(runner)
            engine.generate([[1, 2, 3]], params)
            with torch.no_grad():
                masters["model.layers.1.self_attn.o_proj.weight"].mul_(1.5)
            changed = runner.differing_weights()
        with runner.session():
            engine = engine_of(runner)
            ((after,),) = engine.generate([[1, 2, 3]], params)
            engine.weights_changed()
            ((after,),) = engine.generate([[1, 2, 3]], params)
            moved = abs(after.logprobs[0].logprob - before.logprobs[0].logprob)
            return whole, changed, runner.differing_weights(), moved


@pytest.mark.parametrize(
    ("num_ranks", "parallel", "precision"),
    [
        (2, {"dp_shard": 2, "ep": 2, "micro_batch_size": 2}, "fp32"),
        (4, {"dp_shard": 2, "tp": 2, "ep": 2}, "bf16"),
        (2, {"tp": 2}, "bf16"),
    ],
)
def test_weights_that_are_not_the_trained_ones_are_named(
    num_ranks: int, parallel: dict[str, Any], precision: str
) -> None:
    config = Case(parallel, num_ranks).config(single=False)
    config = config.model_copy(update={"precision": config.precision.model_copy(update={"compute": precision})})
    for whole, changed, after, moved in run_ranks(rank_compares, num_ranks, config):
        assert whole == after == []
        assert all(name.endswith(".weight") for name in changed)
        assert len(changed) == 1
        assert moved > 1e-3
