"""What batches bring along, replayed routing and the model without its adapters, on layouts against one process.

Tokens have tensors of several numbers, which the loss is made of; most have experts that are given. All that a layout
cuts (rows, sequences, layers, experts) has to be cut the same way in all of them.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.adapt.lora import adapters_of
from glmforge.backend.global_batch import run_section
from glmforge.backend.native import NativeBackend
from glmforge.backend.objective import Objective
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import ROUTED_EXPERTS, Batch
from glmforge.model.head import Heads
from glmforge.model.loss import labels_at_depth
from glmforge.model.transformer import Activations, ForwardOutput, GlmMoe, Head
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import Case, batches, fill_adapters, whole_state

TOLERANCE = 1e-5  # that of test_equivalence.py, for the reasons given there
LORA = {"rank": 4, "targets": ["all-linear", "gate", "embed_tokens", "lm_head"]}
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (4, {"cp": 2, "tp": 2, "ep": 2, "recompute": "full"}),
    (4, {"pp": 2, "cp": 2, "ep": 2, "micro_batch_size": 2}),
    (2, {"tp": 2, "ep": 2, "ep_overlap": True, "sequence_parallel": False, "recompute": "selective"}),
]


class WeightedNll(Objective):
    """-log p of the next token and of the one after it, weighted by what the batch brings for tokens and rows."""

    terms = ("next", "second")
    weights = (1.0, 0.5)
    num_mtp = 1

    def denominators(self, batch: Batch) -> Tensor:
        return torch.full((2,), batch.num_tokens, dtype=torch.float64, device=batch.ids_BS.device)

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        labels_T, documents = batch.labels_BS.flatten(), batch.documents()

        def nll(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
            return heads.lm.token_nll(h_TD, share.take(labels_at_depth(labels_T, documents, depth)))

        return nll

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        if not output.is_last:
            return torch.zeros(2, device=batch.ids_BS.device)
        scores_oK = share.own(batch.per_token["scores"].flatten(0, 1), dim=0)
        row_T = torch.arange(len(batch.ids_BS)).repeat_interleave(batch.ids_BS.shape[1])
        weights_oK = scores_oK * batch.per_row["factors"][share.own(row_T)]
        weights_o = (weights_oK * torch.arange(1.0, 4.0)).sum(-1)
        return torch.stack([(weights_o * output.main).sum(), (weights_o * output.mtp[0]).sum()])


def batch_of(config: RunConfig) -> Batch:
    """Every fifth token chooses its experts itself."""
    batch, model, generator = batches(config)[0], config.model, torch.Generator().manual_seed(3)
    num_routers = model.num_moe_layers + model.num_nextn_predict_layers
    noise = torch.rand(*batch.ids_BS.shape, num_routers, model.n_routed_experts, generator=generator)
    experts_BSLK = noise.argsort(dim=-1)[..., : model.num_experts_per_tok].to(torch.int16)
    experts_BSLK[:, ::5] = -1
    scores = torch.rand(*batch.ids_BS.shape, 3, generator=generator)
    factors = torch.rand(len(batch.ids_BS), 3, generator=generator)
    return replace(batch, per_token={"scores": scores, ROUTED_EXPERTS: experts_BSLK}, per_row={"factors": factors})


def results_of(config: RunConfig, world: World) -> dict[str, Tensor]:
    """Of the base model -log p and routing, of the adapted one losses, counts and gradients: what this rank has."""
    backend = NativeBackend.build(config, world, extend=adapters_of(config))
    model, objective, batch = backend.model, WeightedNll(), batch_of(config)
    fill_adapters(model)
    size = world.layout.micro_batch_size or len(batch.ids_BS)
    parts = batch.micro_batches(size)
    share = TokenShare(size, batch.ids_BS.shape[1], world, model.parallel, in_halves=model.parallel.ep_overlap)
    free = [replace(part, per_token={}) for part in parts]
    found: dict[str, Tensor] = {}

    def reference(part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        output = run_section(part, received, objective, free[index], share, adapters=False, with_routing=True)
        experts_BSLK = share.routed_experts(output.router.experts_TLK)
        for place, number in enumerate(part.moe_layers):
            found[f"experts.{number}.{index}"] = experts_BSLK[:, :, place].flatten(0, 1)
        if output.is_last:
            found[f"nll.{index}"], found[f"mtp_nll.{index}"] = share.put(output.main), share.put(output.mtp[0])
        return torch.zeros(()), output.activations

    model.run(reference, len(parts), (size, batch.ids_BS.shape[1]), num_mtp=1, backward=False)
    results = _joined(found, len(parts))
    done = backend.accumulate(objective, parts)
    losses, _ = done.sum(Reducer(world))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    results |= {"losses": losses, "counts": done.count_tokens()[0]}
    return results | {f"gradient.{name}": gradient for name, gradient in whole_state(gradients).items()}


def _joined(found: Mapping[str, Tensor], num_parts: int) -> dict[str, Tensor]:
    names = {name.rpartition(".")[0] for name in found}
    return {name: torch.cat([found[f"{name}.{index}"] for index in range(num_parts)]) for name in names}


def on_rank(case: Case) -> dict[str, Tensor]:
    config = case.config(single=False)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        return results_of(config, world)


@cache
def expected() -> dict[str, Tensor]:
    return results_of(Case({}, 1, lora=LORA).config(single=True), World.single("cpu"))


@pytest.mark.parametrize(("world_size", "parallel"), LAYOUTS, ids=str)
def test_layouts_cut_what_is_given_as_they_cut_tokens(world_size: int, parallel: dict[str, Any]) -> None:
    ranks = run_ranks(on_rank, world_size, Case(parallel, world_size, lora=LORA))
    whole = {name: tensor for results in ranks for name, tensor in results.items()}
    assert whole.keys() == expected().keys()
    for name, tensor in expected().items():
        if tensor.is_floating_point():
            error = (whole[name].double() - tensor.double()).norm() / tensor.double().norm()
            assert error < TOLERANCE, f"{name}: {error:.1e}"
        elif name.startswith("experts."):
            assert torch.equal(whole[name].sort(-1).values, tensor.sort(-1).values), name  # their order is free
        else:
            assert torch.equal(whole[name], tensor), name


def test_what_is_given_matters() -> None:
    """One process: given experts were taken, so the counts are theirs, and the base is another model."""
    results = expected()
    given = batch_of(Case({}, 1, lora=LORA).config(single=True)).per_token[ROUTED_EXPERTS].flatten(0, 1)
    taken = given[given[:, 0, 0] >= 0].long()
    for number in range(taken.shape[1]):
        given_E = torch.bincount(taken[:, number].flatten(), minlength=8)
        assert ((results["counts"][number] - given_E) >= 0).all()
    assert results["counts"].sum() == given.numel()
