"""Numerators and denominators of the next-token objective, written out and section by section."""

import torch

from glmforge.backend.global_batch import run_section
from glmforge.config.parallel import ParallelConfig
from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.model import GlmMoe
from glmforge.model.transformer import Section
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from helpers.models import randomize_, tiny_config

CONFIG = tiny_config(num_nextn_predict_layers=2)
PHASE = PhaseConfig(name="main", steps=1, seq_len=8, batch_size=2, mtp_loss_weight=0.3, aux_loss_weight=0.01)


def batch() -> Batch:
    ids_BS = torch.randint(0, 512, (2, 9), generator=torch.Generator().manual_seed(0))
    labels_BS = ids_BS[:, 1:].clone()
    labels_BS[0, 2] = labels_BS[1, 7] = -100
    return Batch(ids_BS[:, :-1], labels_BS, ((3, 5), (1, 7)), (0, 1), (0, 0))


def test_denominators_are_labels_of_each_depth_and_rows() -> None:
    objective = NextTokenObjective(PHASE, 2)
    assert objective.terms == ("loss", "mtp_1", "mtp_2", "aux")
    assert objective.weights == (1.0, 0.15, 0.15, 0.01)
    # Sixteen tokens, two without a label. A document of n tokens has n - d labels at depth d that lie inside it, less
    # those that are -100: documents of 3, 5, 1 and 7, the first and the last of which end without one.
    expected = [14, (1 + 4 + 0 + 5), (0 + 3 + 0 + 4), 2]
    denominators = objective.denominators(batch())
    assert denominators.tolist() == expected
    assert denominators.dtype == torch.float64


def test_numerators_of_sections_add_up_to_those_of_the_whole() -> None:
    objective = NextTokenObjective(PHASE, 2)
    share = TokenShare(2, 8, World.single("cpu"), ParallelConfig())
    whole = GlmMoe(CONFIG)
    randomize_(whole)
    expected = objective.numerators(run_section(whole, None, objective, batch(), share), batch(), share)
    numerators, received = [], None
    for section in (Section(0, 2, first=True, last=False), Section(2, 3, first=False, last=False)):
        output = run_section(part_of(whole, section), received, objective, batch(), share)
        numerators.append(objective.numerators(output, batch(), share))
        received = output.activations
        assert not numerators[-1][:-1].any()
        assert numerators[-1][-1] > 0
    output = run_section(part_of(whole, Section(3, 4, first=False, last=True)), received, objective, batch(), share)
    numerators.append(objective.numerators(output, batch(), share))
    assert torch.equal(numerators[-1][:-1], expected[:-1])
    # fp32 sums over layers in another order.
    torch.testing.assert_close(torch.stack(numerators).sum(0), expected, rtol=1e-6, atol=0)


def test_z_loss_is_a_term_of_its_own_whose_gradient_goes_with_the_loss() -> None:
    """Against the gradient of both terms by themselves, from all logits."""
    weight = 1.0
    objective = NextTokenObjective(PHASE.model_copy(update={"z_loss_weight": weight}), 2)
    assert objective.terms == ("loss", "mtp_1", "mtp_2", "aux", "z_loss")
    assert objective.denominators(batch()).tolist()[-1] == 14  # labels of the next token
    share = TokenShare(2, 8, World.single("cpu"), ParallelConfig())
    whole = GlmMoe(CONFIG)
    randomize_(whole)
    numerators = objective.numerators(run_section(whole, None, objective, batch(), share), batch(), share)
    without = NextTokenObjective(PHASE, 2)
    plain = without.numerators(run_section(whole, None, without, batch(), share), batch(), share)
    torch.testing.assert_close(numerators[:-1], plain)
    logits_TV = whole.differentiable_logits(batch().ids_BS, batch().documents()).flatten(0, 1)
    is_asked_T = batch().labels_BS.flatten() >= 0
    expected = (logits_TV.float().logsumexp(1)[is_asked_T] ** 2).sum()
    torch.testing.assert_close(numerators[-1], expected)
    parameters = [parameter for name, parameter in whole.named_parameters() if ".4." not in name]  # MTP layers
    actual = torch.autograd.grad((numerators * torch.tensor(objective.weights)).sum(), parameters, allow_unused=True)
    expected = (plain * torch.tensor(without.weights)).sum() + weight * expected
    for a, e in zip(actual, torch.autograd.grad(expected, parameters, allow_unused=True), strict=True):
        if e is not None:
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)  # fp32 sums in another order


def test_a_dense_section_has_a_part_of_nothing() -> None:
    objective = NextTokenObjective(PHASE, 2)
    share = TokenShare(2, 8, World.single("cpu"), ParallelConfig())
    whole = GlmMoe(CONFIG)
    randomize_(whole)
    output = run_section(part_of(whole, Section(0, 1, first=True, last=False)), None, objective, batch(), share)
    assert objective.numerators(output, batch(), share).tolist() == [0.0] * 4


def part_of(whole: GlmMoe, section: Section) -> GlmMoe:
    part, state = GlmMoe(CONFIG, section), whole.state_dict()
    part.load_state_dict({name: state[name] for name in part.state_dict()})
    return part
