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
