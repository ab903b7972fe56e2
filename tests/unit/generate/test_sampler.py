"""Tokens come as often as their probabilities say, whatever else is in the batch."""

import math
import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from glmforge.generate.filters import keep_likeliest_
from glmforge.generate.params import SamplingParams
from glmforge.generate.place import Place
from glmforge.generate.sampler import adjust_, choose_tokens, draw, streams
from glmforge.generate.sequence import Request, Sequence

VOCAB_SIZE = 300
"""More than a block, and no multiple of one."""
PROMPT, ANSWER = (3, 4, 4, 9), (4, 5, 5, 5, 250)
NUM_DRAWS = 6_000

SETTINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 7},
    {"top_p": 0.8},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.7, "min_p": 0.05, "temperature": 1.2},
    {"repetition_penalty": 1.8, "temperature": 0.8},
    {"frequency_penalty": 0.5, "presence_penalty": -0.7},
    {"logit_bias": {0: 3.0, 299: 4.0}, "banned_tokens": (1, 2), "vocab_size": 299},
    {"stop_ids": (0, 1), "min_new_tokens": 7},
]


def place(settings: dict[str, object], seed: int = 0, answer: tuple[int, ...] = ANSWER, sample: int = 0) -> Place:
    params = SamplingParams(**({"temperature": 1.0} | settings))
    return Place(Sequence(Request(0, PROMPT, params, seed), sample, [*PROMPT, *answer]))


@pytest.fixture(scope="module")
def logits_V() -> Tensor:
    return 2.5 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(1))


def probabilities(logits_LV: Tensor, places: list[Place]) -> Tensor:
    adjust_(logits_LV, places)
    return logits_LV.softmax(dim=-1)


def expected(logits: list[float], params: SamplingParams, answer: tuple[int, ...]) -> list[float]:
    """Probabilities as the settings' definitions have them, one token after another."""
    scores = list(logits)
    for token in {*PROMPT, *answer}:
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    for token, number in Counter(answer).items():
        scores[token] -= number * params.frequency_penalty + params.presence_penalty
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    out = {*params.banned_tokens, *range(params.vocab_size or VOCAB_SIZE, VOCAB_SIZE)}
    if len(answer) + 1 < params.min_new_tokens:
        out |= set(params.stop_ids)
    weights = [0 if token in out else math.exp(x / params.temperature) for token, x in enumerate(scores)]
    weights = [0 if weight < params.min_p * max(weights) else weight for weight in weights]
    kept, reached = set(), 0.0
    likeliest = sorted(range(VOCAB_SIZE), key=lambda token: -weights[token])[: params.top_k or VOCAB_SIZE]
    total = sum(weights[token] for token in likeliest)
    for token in likeliest:
        if reached < params.top_p * total:
            kept.add(token)
        reached += weights[token]
    weights = [weight if token in kept else 0 for token, weight in enumerate(weights)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_frequencies(logits_V: Tensor, settings: dict[str, object]) -> None:
    """Pearson's chi-square, tokens that are rarely expected in one class; seeds are fixed, so it passes or never does.

    The bound is five standard deviations of the statistic above its mean.
    """
    places = [place(settings, seed) for seed in range(NUM_DRAWS)]
    tokens = [one.token for one in choose_tokens(logits_V.repeat(NUM_DRAWS, 1), places)]
    wanted = expected(logits_V.tolist(), places[0].params, ANSWER)
    found = Counter(tokens)
    assert all(wanted[token] > 0 for token in found)
    often = [token for token, share in enumerate(wanted) if share * NUM_DRAWS >= 10]
    classes = [(found[token], wanted[token] * NUM_DRAWS) for token in often]
    classes.append((NUM_DRAWS - sum(n for n, _ in classes), NUM_DRAWS - sum(share for _, share in classes)))
    statistic = sum((number - share) ** 2 / share for number, share in classes if share > 1e-3)
    degrees = max(1, len(often))
    assert statistic < degrees + 5 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("settings", [*SETTINGS, {"first_tokens": (5, 8)}], ids=str)
def test_probabilities(logits_V: Tensor, settings: dict[str, object]) -> None:
    """Of one place among others that ask for something else; tolerance: a sum of 300 numbers in fp32."""
    answer = () if "first_tokens" in settings else ANSWER
    others = [place(other, answer=answer) for other in SETTINGS]
    places = [*others[:4], place(settings, answer=answer), *others[4:]]
    found = probabilities(logits_V.repeat(len(places), 1), places)[4]
    if answer:
        wanted = torch.tensor(expected(logits_V.tolist(), places[4].params, answer))
    else:
        wanted = torch.zeros(VOCAB_SIZE)
        wanted[[5, 8]] = logits_V[[5, 8]].softmax(dim=0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_tokens_do_not_depend_on_the_batch(logits_V: Tensor) -> None:
    generator = random.Random(0)
    places = [place(generator.choice([*SETTINGS, {"temperature": 0}]), seed % 9, sample=seed % 3) for seed in range(90)]
    logits_LV = logits_V + torch.randn(90, 1) * logits_V.roll(1)
    together = choose_tokens(logits_LV.clone(), places)
    alone = [choose_tokens(logits_LV[row][None].clone(), [one])[0] for row, one in enumerate(places)]
    assert together == alone


def test_a_drafted_token_counts_as_one_of_the_answer(logits_V: Tensor) -> None:
    settings = {"frequency_penalty": 2.0, "repetition_penalty": 1.3}
    drafted = Place(place(settings, answer=ANSWER[:3]).sequence, ANSWER[3:])
    plain = place(settings)
    found = probabilities(logits_V.repeat(2, 1), [drafted, plain])
    assert torch.equal(found[0], found[1])
    assert torch.equal(streams([drafted]), streams([plain]))


def test_no_token_without_weight_is_drawn() -> None:
    weights_LV = torch.zeros(2000, 1000)
    weights_LV[:, 600] = 1e-30
    assert set(draw(weights_LV, torch.arange(2000)).tolist()) == {600}


def test_similar_distributions_mostly_give_the_same_token() -> None:
    """At least (1 - d) / (1 + d) of the time for a total variation d, if blocks were not; with them about as often."""
    generator = torch.Generator().manual_seed(0)
    logits_LV = 2 * torch.randn(1, 2000, generator=generator)
    shifted_LV = logits_LV + 0.3 * torch.randn(1, 2000, generator=generator)
    distance = (logits_LV.softmax(dim=-1) - shifted_LV.softmax(dim=-1)).abs().sum().item() / 2
    tokens, others = (draw(x.softmax(dim=-1).expand(4000, -1), torch.arange(4000)) for x in (logits_LV, shifted_LV))
    assert (tokens == others).double().mean() > 0.95 * (1 - distance) / (1 + distance)


def test_more_candidates_where_the_likeliest_do_not_suffice() -> None:
    """A flat row, of which top-p keeps thousands, beside a steep one; tokens as likely as the last are kept."""
    logits_LV = torch.zeros(2, 5000)
    logits_LV[:, :4000] = torch.linspace(1, 0.5, 4000)
    logits_LV[1, 0] = 30
    keep_likeliest_(logits_LV, [SamplingParams(temperature=1.0, top_p=0.9)] * 2)
    shares = torch.linspace(1, 0.5, 4000).exp()
    total = shares.sum() + 1000
    assert shares.sum() < 0.9 * total  # so the last thousand, all alike, are kept
    assert logits_LV.isfinite().sum(dim=1).tolist() == [5000, 1]
