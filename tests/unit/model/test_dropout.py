"""Dropout in the model: off when nothing asks for it, a function of what it is said to be, and where it belongs."""

import pytest
import torch
from torch import Tensor

from glmforge.config.regularization import RegularizationConfig
from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.dropout import LayerDropout, Noise, TokenNoise
from glmforge.model.inputs import ModelInputs
from helpers.models import randomize_, tiny_config

B, S = 4, 16


def step_noise(dropout: float = 0.1, attention_dropout: float = 0.1, *, seed: int = 0, step: int = 0) -> Noise:
    regularization = RegularizationConfig(dropout=dropout, attention_dropout=attention_dropout)
    noise = Noise.of_step(regularization, seed, step)
    assert noise is not None
    return noise


def masks(noise: TokenNoise, layer: int, width: int = 256) -> tuple[Tensor, Tensor]:
    """What attention's and the MLP's part keep of ones."""
    dropout = noise.of_layer(layer)
    assert dropout is not None
    ones_TD = torch.ones(len(noise.token_T), width)
    return dropout.drop_attention(ones_TD) > 0, dropout.drop_mlp(ones_TD) > 0


def model() -> GlmMoe:
    model = GlmMoe(tiny_config())
    randomize_(model)
    return model


def ids_and_documents() -> tuple[Tensor, list[list[int]]]:
    ids_BS = torch.randint(0, 512, (B, S), generator=torch.Generator().manual_seed(0))
    return ids_BS, [[5, 11], [16], [1, 15], [3, 3, 10]]


def logits(model: GlmMoe, noise: Noise | None, rows: range = range(B)) -> tuple[Tensor, Tensor]:
    """Of the trunk and of the MTP layer, of these rows run together."""
    ids_BS, lengths = ids_and_documents()
    documents = Documents.from_lengths([length for row in rows for length in lengths[row]])
    tokens = None if noise is None else noise.of_samples([100 + row for row in rows], S)
    output = model(ModelInputs.whole(ids_BS[rows.start : rows.stop], documents, 1, tokens))
    return output.main, output.mtp[0]


def test_no_noise_without_rates() -> None:
    assert Noise.of_step(RegularizationConfig(), 0, 0) is None
    assert step_noise(0.0, 0.5).of_samples([0], 4).of_layer(0) is None


def test_evaluation_drops_nothing() -> None:
    trained = model()
    expected = logits(trained, None)
    trained.eval()
    for ours, plain in zip(logits(trained, step_noise()), expected, strict=True):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("rates", [(0.1, 0.0), (0.0, 0.1)], ids=["residual", "attention"])
def test_both_kinds_reach_trunk_and_mtp(rates: tuple[float, float]) -> None:
    trained = model()
    plain, dropped, again = (logits(trained, noise) for noise in (None, step_noise(*rates), step_noise(*rates)))
    for before, after, once_more in zip(plain, dropped, again, strict=True):
        assert not torch.allclose(before, after)
        assert torch.equal(after, once_more)


def test_mtp_drops_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two depths, with the trunk undisturbed."""
    trained = model()
    of_layer = TokenNoise.of_layer
    num_trunk = trained.config.num_hidden_layers

    def of_mtp_only(noise: TokenNoise, layer: int) -> LayerDropout | None:
        return of_layer(noise, layer) if layer >= num_trunk else None

    monkeypatch.setattr(TokenNoise, "of_layer", of_mtp_only)
    (plain, plain_mtp), (main, mtp) = (logits(trained, noise) for noise in (None, step_noise(0.1, 0.0)))
    assert torch.equal(main, plain)
    assert not torch.allclose(mtp, plain_mtp)


@pytest.mark.parametrize("changed", [{"step": 1}, {"seed": 1}], ids=str)
def test_other_steps_and_seeds_drop_other_things(changed: dict[str, int]) -> None:
    trained = model()
    assert not torch.allclose(logits(trained, step_noise())[0], logits(trained, step_noise(**changed))[0])


def test_micro_batches_do_not_matter() -> None:
    trained = model()
    whole = logits(trained, step_noise())
    parts = [logits(trained, step_noise(), rows) for rows in (range(1), range(1, 3), range(3, 4))]
    for depth in (0, 1):
        # Matrix products of other sizes round otherwise; a mask that differed would show at 1e-1.
        torch.testing.assert_close(torch.cat([part[depth] for part in parts]), whole[depth], rtol=1e-4, atol=1e-4)


def test_documents_of_a_row_do_not_see_each_other() -> None:
    """A document's mask depends on its place in the run, not on what its neighbours hold."""
    trained, noise = model(), step_noise().of_samples([7], S)
    ids_BS = torch.randint(0, 512, (1, S), generator=torch.Generator().manual_seed(0))
    changed_BS = ids_BS.clone()
    changed_BS[:, :6] = (ids_BS[:, :6] + 1) % 512
    documents = Documents.from_lengths([6, 10])
    first, second = (
        trained(ModelInputs.whole(ids, documents, 1, noise)).main for ids in (ids_BS % 512, changed_BS % 512)
    )
    assert not torch.allclose(first[:6], second[:6])
    torch.testing.assert_close(first[6:], second[6:], rtol=1e-4, atol=1e-4)


def test_masks_have_their_rate_and_are_independent() -> None:
    rate, size = 0.3, 256
    some = step_noise(rate).of_samples([0], size)
    made = {
        "layer 0 attention": masks(some, 0)[0],
        "layer 0 mlp": masks(some, 0)[1],
        "layer 1 attention": masks(some, 1)[0],
        "layer 1 mlp": masks(some, 1)[1],
        "next step": masks(step_noise(rate, step=1).of_samples([0], size), 0)[0],
        "other seed": masks(step_noise(rate, seed=1).of_samples([0], size), 0)[0],
        "next sample": masks(step_noise(rate).of_samples([1], size), 0)[0],
    }
    centred = {name: (mask.double() - (1 - rate)).flatten() for name, mask in made.items()}
    variance, bound = rate * (1 - rate), 5 / size  # five standard deviations of a mean over 256 x 256
    for name, mask in centred.items():
        assert abs(mask.mean().item()) < bound * variance**0.5 + 2**-17, name
        for other, theirs in centred.items():
            if other != name:
                assert abs((mask * theirs).mean().item()) < bound * variance, (name, other)


def test_tokens_are_numbered_by_sample() -> None:
    """The last token of a sample and the first of the next one, whatever lies beside them."""
    noise = step_noise()
    assert noise.of_samples([3, 9], 4).token_T.tolist() == [12, 13, 14, 15, 36, 37, 38, 39]
    both, alone = noise.of_samples([3, 9], 4), noise.of_samples([9], 4)
    for ours, theirs in zip(masks(both, 2), masks(alone, 2), strict=True):
        assert torch.equal(ours[4:], theirs)


def test_heads_have_their_own_streams_and_parts_of_them_the_same() -> None:
    noise = step_noise().of_samples([0], 8)
    whole_TH = noise.of_attention(1, range(4))
    assert whole_TH.unique().numel() == whole_TH.numel()
    assert torch.equal(torch.cat([noise.of_attention(1, range(2)), noise.of_attention(1, range(2, 4))], 1), whole_TH)


@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.0, 0.2)], ids=["residual", "attention"])
def test_gradients_are_those_of_the_dropped_function(rates: tuple[float, float]) -> None:
    """Along a random direction, against a difference quotient; layers are dense, so no router jumps in between."""
    trained = GlmMoe(tiny_config(first_k_dense_replace=4, num_nextn_predict_layers=0)).double()
    randomize_(trained)
    trained.compute_dtype = torch.float64
    weight = trained.trunk_layers[0].self_attn.v_proj.weight
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ids_BS, noise = ids_and_documents()[0], step_noise(*rates).of_samples(range(B), S)

    def loss(distance: float) -> Tensor:
        with torch.no_grad():
            weight.add_(direction, alpha=distance)
        return trained(ModelInputs.whole(ids_BS, noise=noise)).main.square().mean()

    loss(0.0).backward()
    size = 1e-3
    quotient = (loss(size) - loss(-2 * size)) / (2 * size)
    # RMSNorm computes in fp32, whose rounding the quotient magnifies by 1 / size.
    assert (weight.grad * direction).sum().item() == pytest.approx(quotient.item(), rel=1e-2)
