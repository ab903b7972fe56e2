"""The Fisher information against its definition, by autograd on the model's logits."""

import torch

from glmforge.config.layout import resolve_layout
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from glmforge.training.fisher import diagonal_fisher
from helpers.equivalence import Case, batches


def test_it_is_the_squared_gradient_of_each_row_per_token() -> None:
    config = Case({}, 1).config(single=True)
    world = World(0, 1, torch.device("cpu"), resolve_layout(config, 1))
    model = build_model(config, world)
    rows = [batches(config)[0].rows(index, index + 1) for index in range(3)]
    fisher, num_tokens = diagonal_fisher(model, rows)
    (whole,) = model.parts
    expected = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for row in rows:
        logits_SV = whole.differentiable_logits(row.ids_BS, row.documents())[0]
        is_label_S = row.labels_BS[0] >= 0
        log_p = logits_SV.log_softmax(-1)[is_label_S].gather(1, row.labels_BS[0][is_label_S, None]).sum()
        names = [name for name, _ in model.named_parameters()]
        gradients = torch.autograd.grad(log_p, list(model.parameters()), allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            expected[name] += 0 if gradient is None else gradient.square()
    assert num_tokens == sum(row.num_label_tokens for row in rows)
    for name, total in expected.items():
        # fp32 gradients in another order of summation, squared. Keys' biases have gradients that are rounding alone.
        torch.testing.assert_close(fisher[name], total / num_tokens, rtol=1e-4, atol=1e-8, msg=name)
        assert not (model.table[name].mtp and fisher[name].any()), name
    assert all(parameter.grad is None for parameter in model.parameters())
