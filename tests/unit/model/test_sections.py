"""A model run section by section is the whole model, bit for bit."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs
from glmforge.model.loss import CrossEntropyHead
from glmforge.model.transformer import Activations, ForwardOutput, Section
from helpers.models import randomize_, tiny_config

CONFIG = tiny_config(num_nextn_predict_layers=2)  # four layers, the first dense, and two MTP layers
SPLITS = {
    "two": (2, 2),
    "one each": (1, 1, 1, 1),
    "nothing but the embedding": (0, 4),
    "nothing but the head": (3, 1, 0),
}


def whole_model() -> GlmMoe:
    model = GlmMoe(CONFIG)
    randomize_(model)
    return model


def sections_of(model: GlmMoe, split: tuple[int, ...]) -> list[GlmMoe]:
    """Models of these numbers of layers with copies of the whole one's weights."""
    state, parts, start = model.state_dict(), [], 0
    for index, layers in enumerate(split):
        section = Section(start, start + layers, first=index == 0, last=index == len(split) - 1)
        part = GlmMoe(CONFIG, section)
        part.load_state_dict({name: state[name] for name in part.state_dict()})
        parts.append(part)
        start += layers
    return parts


def batch() -> tuple[ModelInputs, CrossEntropyHead]:
    ids_BS = torch.randint(0, 512, (2, 17), generator=torch.Generator().manual_seed(1))
    documents = Documents.from_lengths([5, 11, 16])
    return ModelInputs.whole(ids_BS[:, :-1], documents, 2), CrossEntropyHead.whole(ids_BS[:, 1:], documents, 2)


def loss_of(output: ForwardOutput[Tensor]) -> Tensor:
    """A section's own part of the training loss."""
    losses = [each.sum for each in (output.main, *output.mtp)] if output.is_last else []
    return sum(losses, 0.01 * output.router.aux_loss)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_sections_hold_the_model_between_them(split: tuple[int, ...]) -> None:
    model = whole_model()
    parts = sections_of(model, split)
    names = [name for part in parts for name in part.state_dict()]
    assert sorted(names) == sorted(model.state_dict())
    numbers = [number for part in parts for number in part.moe_layers]
    assert numbers == list(model.moe_layers) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_outputs_and_gradients_are_bit_equal(split: tuple[int, ...]) -> None:
    inputs, head = batch()
    model = whole_model()
    expected = model(inputs, head=head, with_aux_loss=True)
    loss_of(expected).backward()

    parts = sections_of(model, split)
    outputs: list[ForwardOutput[Tensor]] = []
    received: list[Activations | None] = [None]
    for part in parts:
        output = part(inputs, received[-1], head=head, with_aux_loss=True)
        outputs.append(output)
        if output.activations is not None:
            # As between ranks: the next section's graph begins here.
            x_TD, next_TD = output.activations
            received.append(Activations(leaf(x_TD), tuple(leaf(depth_TD) for depth_TD in next_TD)))
    run_backward(outputs, received)

    assert torch.equal(outputs[-1].main.sum, expected.main.sum)
    assert all(torch.equal(a.sum, b.sum) for a, b in zip(outputs[-1].mtp, expected.mtp, strict=True))
    assert torch.equal(torch.cat([output.router.counts_LE for output in outputs]), expected.router.counts_LE)
    # The balance loss is one sum over all layers, and a sum of sums over sections.
    aux_loss = sum(output.router.aux_loss for output in outputs)
    torch.testing.assert_close(aux_loss, expected.router.aux_loss, rtol=1e-6, atol=0)
    for part in parts:
        for name, parameter in part.named_parameters():
            assert torch.equal(parameter.grad, model.get_parameter(name).grad), name


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def run_backward(outputs: list[ForwardOutput[Tensor]], received: list[Activations | None]) -> None:
    """Last section first; each gets the gradients of what it passed on, with those of its own losses."""
    passed_on: list[Tensor] = []
    gradients: list[Tensor | None] = []
    for output, entry in zip(reversed(outputs), reversed(received), strict=True):
        tensors = [] if output.activations is None else [output.activations.x_TD, *output.activations.next_TD]
        loss = loss_of(output)
        own = [loss] if loss.requires_grad else []
        torch.autograd.backward([*tensors, *own], [*gradients, *[None] * len(own)])
        passed_on = [] if entry is None else [entry.x_TD, *entry.next_TD]
        gradients = [tensor.grad for tensor in passed_on]


def test_a_middle_section_neither_embeds_nor_asks_the_head() -> None:
    part = sections_of(whole_model(), (1, 2, 1))[1]
    assert part.lm_head is None
    assert part.model.embed_tokens is None
    assert list(part.model.layers) == ["1", "2"]
    inputs, _ = batch()
    given = Activations(torch.zeros(32, 48), (torch.ones(32, 48),))
    output = part(inputs, given, head=lambda *_: pytest.fail("the head is in the last section"))
    assert output.main is None
    assert output.mtp == ()
    assert output.activations.next_TD[0] is given.next_TD[0]
    with pytest.raises(AssertionError, match="only the first section embeds"):
        part(inputs)
