"""What a token that is not learnt would have been asked for has no influence, to the bit, whatever the layout."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import LOSS_WEIGHT
from glmforge.objectives.sft import SftObjective
from glmforge.parallel.world import join_world
from glmforge.training.step import train_step
from helpers.distributed import run_ranks
from helpers.equivalence import Case, batches, whole_state

SFT = {"stage": "sft", "init_from": "nowhere"}


def variants(batch: Batch, vocab_size: int) -> list[Batch]:
    """The batch with labels under weight 0 left out, as any token, and as another one."""
    weights_BS = batch.per_token[LOSS_WEIGHT]
    ends_BS = torch.zeros_like(weights_BS, dtype=torch.bool)
    for row, lengths in enumerate(batch.document_lengths):
        ends_BS[row, torch.tensor(lengths).cumsum(0) - 1] = True
    is_masked_BS = (weights_BS == 0) & ~ends_BS
    following_BS = batch.ids_BS.roll(-1, 1)
    asked = [batch.labels_BS.where(~is_masked_BS, (following_BS + shift) % vocab_size) for shift in (0, 7)]
    assert is_masked_BS.sum() > 50
    return [replace(batch, labels_BS=labels_BS) for labels_BS in (batch.labels_BS, *asked)]


def influenced(case: Case) -> list[str]:
    """Names of losses and gradients that differ between the variants."""
    config = case.config(single=False)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        objective = SftObjective(config.phases[0], config.model.num_nextn_predict_layers, mean="conversations")
        results: list[dict[str, Tensor]] = []
        for batch in variants(batches(config)[0], config.model.vocab_size):
            micro_batches = batch.micro_batches(world.layout.micro_batch_size or config.phases[0].batch_size)
            backend.accumulate(objective, micro_batches)
            gradients = {name: p.grad for name, p in backend.model.named_parameters() if p.grad is not None}
            whole = whole_state(gradients)
            backend.zero_grad()
            losses = train_step(backend, objective, micro_batches, lr=0.0, grad_clip=None, router_bias_rate=0.0).losses
            results.append(whole | {term: torch.tensor(loss) for term, loss in losses.items()})
        assert {"loss", "mtp_1"} < results[0].keys()
        return [name for name in results[0] if not all(torch.equal(results[0][name], r[name]) for r in results[1:])]


@pytest.mark.parametrize("parallel", [{"cp": 2}, {"pp": 2, "micro_batch_size": 2}], ids=["cp", "pp"])
def test_labels_of_weight_zero_have_no_influence(parallel: dict[str, Any]) -> None:
    assert run_ranks(influenced, 2, Case(parallel, 2, stage=SFT), timeout_s=120) == [[], []]
