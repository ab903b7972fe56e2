"""The equivalence suite sees the mistakes it is there for: planted, each must show in the numbers it spoils."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.config.parameters import Parameter
from glmforge.model import transformer
from glmforge.model.block import LayerOutput
from glmforge.model.inputs import DocumentAttention, Rows
from glmforge.objectives import next_token
from glmforge.parallel import context, expert, inputs, model
from glmforge.parallel.model import ParallelModel
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case


def divide_experts_by_ep() -> None:
    """The factor-EP bug: experts averaged over ranks whose gradients their own already contains."""
    finish = ParallelModel.finish_gradients

    def finish_and_divide(self: ParallelModel) -> None:
        finish(self)
        for name, parameter in self.named_parameters():
            if ".mlp.experts." in name and parameter.grad is not None:
                parameter.grad /= self.world.axis_size("ep")

    model.ParallelModel.finish_gradients = finish_and_divide  # type: ignore[method-assign]


def forget_qk_norms() -> None:
    """Leave the QK-norms' gradients as each tp rank has them, from its own heads."""
    norms = ("q_norm.weight", "k_norm.weight")
    partial_axes = Parameter.partial_axes
    Parameter.partial_axes = lambda self, **how: () if self.name.endswith(norms) else partial_axes(self, **how)  # type: ignore


def count_twice() -> None:
    """Sum the counts over the ranks of a layer where they are made, although the step sums them over all ranks."""
    add = transformer._StatsCollector.add

    def sum_and_add(self: transformer._StatsCollector, outputs: Sequence[LayerOutput], rows: Sequence[Rows]) -> None:
        for output in outputs:
            if output.counts_E is not None:
                dist.all_reduce(output.counts_E)
        add(self, outputs, rows)

    transformer._StatsCollector.add = sum_and_add  # type: ignore[method-assign]


def lose_rows() -> None:
    """Bring the rows back from the experts in the order of the ranks, not in that of their senders."""
    expert._order_by_expert = lambda received_Re, num_rows: torch.arange(num_rows)


def look_ahead() -> None:
    """Give cp ranks two neighbouring chunks but the positions in the row of the zig-zag."""
    index = context.zigzag_index

    def neighbours(*args: object, **kwargs: object) -> Tensor:
        return index(*args, **kwargs).roll(1)  # type: ignore[arg-type]

    inputs.zigzag_index = neighbours


def drop_by_place() -> None:
    """Drop by a token's place among the rank's, not by its number in the run."""
    share = inputs.TokenShare._residual_stream
    inputs.TokenShare._residual_stream = lambda self, x_T: x_T[: len(share(self, x_T))]  # type: ignore[method-assign]


def drop_by_own_head() -> None:
    """Number the heads of every tp rank from 0."""
    init = DocumentAttention.__init__
    DocumentAttention.__init__ = lambda self, documents, noise, part: init(self, documents, noise)  # type: ignore


def level_alone() -> None:
    """Let every rank normalise its own part of a row."""
    inputs.TokenShare._groups_sharing_rows = lambda self: ()  # type: ignore[method-assign]


def weigh_neighbours() -> None:
    """Give each token the loss weight of the one before it: of a role token, that of the last word of the answer."""
    take = inputs.TokenShare.take
    inputs.TokenShare.take = (  # type: ignore[method-assign]
        lambda self, x_T, *dim: take(self, x_T, *dim).roll(1) if x_T.is_floating_point() else take(self, x_T, *dim)
    )


def ask_beyond_documents() -> None:
    """Let MTP layers be asked for tokens of the next document."""
    next_token.labels_at_depth = lambda labels_T, documents, depth: labels_T.roll(-depth)


SFT = {"stage": "sft", "init_from": "nowhere"}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}

PLANTS: dict[str, tuple[Callable[[], None], Case, str]] = {
    "factor EP": (divide_experts_by_ep, Case({"ep": 2}, 2), "gradient.model.layers.2.mlp.experts.down_proj"),
    "QK-norm": (forget_qk_norms, Case({"tp": 2}, 2), "gradient.model.layers.1.self_attn.q_norm.weight"),
    "doubled count": (count_twice, Case({"tp": 2}, 2), "counts.0"),
    "order of rows": (lose_rows, Case({"ep": 2}, 2), "gradient.model.layers.2.mlp.experts.down_proj"),
    "context index": (look_ahead, Case({"cp": 2}, 2), "loss.0.loss"),
    "tokens dropped": (drop_by_place, Case({"tp": 2}, 2, regularization=DROPOUT), "loss.0.loss"),
    "heads dropped": (drop_by_own_head, Case({"tp": 2}, 2, regularization=DROPOUT), "loss.0.loss"),
    "loss weights": (weigh_neighbours, Case({"cp": 2}, 2, stage=SFT), "loss.0.loss"),
    "border of documents": (ask_beyond_documents, Case({"pp": 2, "micro_batch_size": 2}, 2, stage=SFT), "loss.0.mtp_1"),
    "Sinkhorn": (level_alone, Case({"cp": 2}, 2, phase={"balance": "sinkhorn", "aux_loss_weight": 0}), "counts.0"),
}


def rank_with_plant(name: str) -> dict[str, Tensor]:
    plant, case, _ = PLANTS[name]
    plant()
    return rank_case(case)


QUICK = ("factor EP", "QK-norm", "context index", "heads dropped", "border of documents")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in PLANTS]
)
def test_a_planted_bug_is_seen(name: str) -> None:
    _, case, spoiled = PLANTS[name]
    try:
        actual = run_ranks(rank_with_plant, case.world_size, name, timeout_s=120)[0]
    except RankFailure as failure:
        if "ranks that hold copies of a part differ" not in str(failure):
            raise
        return
    errors = differences(actual, single_case(case))
    assert errors[spoiled] > 1e-3, errors[spoiled]
