"""DeepEP's dispatcher, over a stand-in for the package: the same numbers as the all-to-all's and one process's."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.kernels.choice import UNMEASURED
from glmforge.kernels.router import Routes
from glmforge.model.dispatch import Dispatcher, LocalDispatcher, expert_counts
from glmforge.model.moe import Experts
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel import deepep
from glmforge.parallel.deepep import DeepEPDispatcher
from glmforge.parallel.expert import AllToAllDispatcher
from glmforge.parallel.world import join_world
from helpers import deep_ep
from helpers.distributed import run_ranks
from helpers.equivalence import Case, batches, differences, rank_case, single_case
from helpers.host_waits import HostWaits
from helpers.models import tiny_config

EXPERTS, CHOICES, HIDDEN = 8, 3, 16
CONFIG = tiny_config(hidden_size=HIDDEN, n_routed_experts=EXPERTS, num_experts_per_tok=CHOICES, moe_intermediate_size=8)
SITUATIONS = ["usual", "dropped", "low experts", "no tokens"]


def routes_of(situation: str, rank: int) -> tuple[Tensor, Routes]:
    """Tokens of a rank, other ones on each, and where they go."""
    generator = torch.Generator().manual_seed(rank)
    num_tokens = 0 if situation == "no tokens" and rank == 1 else 5 + 2 * rank
    x_TD = torch.randn(num_tokens, HIDDEN, generator=generator, dtype=torch.float64)
    scores_TE = torch.rand(num_tokens, EXPERTS, generator=generator)
    if situation == "low experts":  # the last ranks get nothing
        scores_TE[:, :CHOICES] += 1
    weights_TK, experts_TK = scores_TE.topk(CHOICES)
    if situation == "dropped":
        experts_TK[torch.rand(experts_TK.shape, generator=generator) < 0.3] = EXPERTS
        experts_TK[0] = EXPERTS
    return x_TD, Routes(weights_TK, experts_TK, scores_TE)


def experts_of(dispatcher: Dispatcher, rank: int, num_ranks: int, may_drop: bool) -> Experts:
    """A rank's share of the experts, in float64."""
    experts = Experts(CONFIG).double()
    generator = torch.Generator().manual_seed(99)
    share = slice(rank * EXPERTS // num_ranks, (rank + 1) * EXPERTS // num_ranks)
    for name in ("gate_up_proj", "down_proj"):
        whole = torch.randn(getattr(experts, name).shape, generator=generator, dtype=torch.float64)
        setattr(experts, name, torch.nn.Parameter(whole[share].clone()))
    experts.dispatcher = dispatcher
    if may_drop:
        experts.capacity_factor = 1.0
        experts._within_capacity = lambda routes: routes.experts_TK  # type: ignore[method-assign]
    return experts


def results(experts: Experts, x_TD: Tensor, routes: Routes) -> dict[str, Tensor]:
    """Output, counts, and gradients of a loss in which every element has another factor."""
    weights_TK = routes.weights_TK.clone().requires_grad_()
    x_TD = x_TD.clone().requires_grad_()
    sent = experts.send(x_TD, routes._replace(weights_TK=weights_TK))
    ((y_TD,), _) = experts(sent, overlap=lambda: [x_TD])
    counts_E = expert_counts(sent.kept_TK, EXPERTS)
    (y_TD * x_TD.detach().cos()).sum().backward()
    gradients = {"x": x_TD.grad, "weights": weights_TK.grad}
    gradients |= {name: parameter.grad for name, parameter in experts.named_parameters()}
    return {"y": y_TD.detach(), "counts": counts_E} | {
        k: torch.zeros(()) if g is None else g for k, g in gradients.items()
    }


def rank_results(situation: str, permute: str = "plain") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By DeepEP and by the all-to-all."""
    rank, num_ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    assert group is not None
    deepep_dispatcher = DeepEPDispatcher(deep_ep.Buffer(group, num_nvl_bytes=1))
    x_TD, routes = routes_of(situation, rank)
    by_deepep, by_all_to_all = (
        experts_of(dispatcher, rank, num_ranks, situation == "dropped")
        for dispatcher in (deepep_dispatcher, AllToAllDispatcher(group))
    )
    by_deepep.kernels = UNMEASURED.model_copy(update={"permute": permute})
    return results(by_deepep, x_TD, routes), results(by_all_to_all, x_TD, routes)


def one_process(situation: str, num_ranks: int) -> list[dict[str, Tensor]]:
    """What each rank is to find: the tokens of all at once, cut into the ranks' parts."""
    tokens = [routes_of(situation, rank) for rank in range(num_ranks)]
    routes = Routes(*(torch.cat(parts) for parts in zip(*(routes for _, routes in tokens), strict=True)))
    experts = experts_of(LocalDispatcher(), 0, 1, situation == "dropped")
    whole = results(experts, torch.cat([x_TD for x_TD, _ in tokens]), routes)
    lengths = [len(x_TD) for x_TD, _ in tokens]
    by_token = {name: whole[name].split(lengths) for name in ("y", "x", "weights")}
    by_expert = {name: whole[name].chunk(num_ranks) for name in ("gate_up_proj", "down_proj")}
    return [{name: parts[rank] for name, parts in (by_token | by_expert).items()} for rank in range(num_ranks)]


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], exactly: float = 1e-11) -> None:
    for name, value in expected.items():
        # Float64 but for the weights, whose gradients are float32 sums of at most 16 terms.
        tolerance = 1e-5 if name == "weights" else exactly
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.full), 4])
def test_outputs_gradients_and_counts(num_ranks: int, situation: str) -> None:
    found = run_ranks(rank_results, num_ranks, situation)
    for (by_deepep, by_all_to_all), alone in zip(found, one_process(situation, num_ranks), strict=True):
        assert_equal(by_deepep, by_all_to_all)
        assert_equal(by_deepep, alone)


def test_rows_in_order_by_tritons_kernels() -> None:
    for by_deepep, by_all_to_all in run_ranks(rank_results, 2, "dropped", "triton"):
        # They add up in float32: a few choices of a token.
        assert_equal(by_deepep, by_all_to_all, exactly=1e-5)


def use_deepep() -> None:
    """Let a rank without a GPU take the stand-in."""
    deep_ep.install()
    deepep.check_usable = lambda config, device: None


def rank_by_deepep(case: Case) -> dict[str, Tensor]:
    use_deepep()
    return rank_case(case)


DEEPEP = {"ep_dispatch": "deepep"}


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        (2, {"ep": 2, "recompute": "full"}),
        (2, {"ep": 2, "tp": 2, "recompute": "selective", "micro_batch_size": 4}),
        (2, {"ep": 2, "micro_batch_size": 4, "ep_overlap": True}),
        pytest.param(2, {"ep": 2, "tp": 2, "recompute": "selective", "ep_overlap": True}, marks=pytest.mark.full),
        pytest.param(4, {"ep": 2, "dp_shard": 4, "recompute": "full", "ep_overlap": True}, marks=pytest.mark.full),
        pytest.param(4, {"ep": 4, "micro_batch_size": 1}, marks=pytest.mark.full),
        pytest.param(
            4,
            {"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 1, "pipeline_schedule": "zbv"},
            marks=pytest.mark.full,
        ),
    ],
    ids=str,
)
def test_training_steps_equal_those_of_one_process(world_size: int, parallel: dict[str, Any]) -> None:
    case = Case(parallel | DEEPEP, world_size)
    errors = differences(run_ranks(rank_by_deepep, world_size, case)[0], single_case(case))
    # As in test_equivalence.py
    assert max(errors.values()) < 1e-5, max(errors.items(), key=lambda error: error[1])


def test_what_has_no_room_is_dropped_as_by_the_all_to_all() -> None:
    phase = {"capacity_factor": 1.0}
    expected = run_ranks(rank_case, 2, Case({"ep": 2}, 2, phase=phase))[0]
    assert expected["dropped.0"].sum() > 0
    errors = differences(run_ranks(rank_by_deepep, 2, Case({"ep": 2} | DEEPEP, 2, phase=phase))[0], expected)
    assert max(errors.values()) < 1e-5, max(errors.items(), key=lambda error: error[1])


def rank_waits(recompute: str) -> tuple[int, int, Counter[str]]:
    """Of one pass over two micro-batches: dispatches of a new layout, repeated ones, and the host's waits by file."""
    use_deepep()
    config = Case({"ep": 2, "recompute": recompute, "micro_batch_size": 2} | DEEPEP, 2).config(single=False)
    with join_world(resolve_layout(config, 2), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        objective = NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers)
        micro_batches = batches(config)[0].rows(world.data_rank * 4, world.data_rank * 4 + 4).micro_batches(2)
        with HostWaits() as waits:
            backend.accumulate(objective, micro_batches)
    return deep_ep.Buffer.num_layouts, deep_ep.Buffer.num_repeated, Counter(p.partition(":")[0] for _, p in waits)


@pytest.mark.parametrize(
    "recompute", ["full", *(pytest.param(name, marks=pytest.mark.full) for name in ("none", "selective"))]
)
def test_a_layer_computed_again_repeats_its_layout(recompute: str) -> None:
    for num_layouts, num_repeated, waits in run_ranks(rank_waits, 2, recompute):
        num_forward = 4 * 2  # routed layers, MTP's among them, and micro-batches
        assert num_layouts == num_forward
        # Each backward pass of `combine`, and what is computed again
        assert num_repeated == (num_forward if recompute == "none" else 2 * num_forward)
        assert "deepep.py" not in waits
