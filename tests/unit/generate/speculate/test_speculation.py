"""Drafts change no token, whatever drafts them; and they take nothing that others need."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace

import pytest
import torch

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine, Sample
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sequence import Sequence
from glmforge.generate.speculate.drafter import Computed
from glmforge.generate.speculate.speculation import Speculation
from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config


class Oracle:
    """Knows all answers, by prompt and sample, and gets some tokens wrong."""

    def __init__(self, answers: dict[tuple[tuple[int, ...], int], list[int]], errors: float) -> None:
        self.answers, self.errors, self.generator = answers, errors, random.Random(0)

    def draft(self, computed: Items[Computed], lengths: Mapping[Sequence, int]) -> None:
        for sequence, number in lengths.items():
            answer = self.answers[sequence.request.prompt, sequence.sample]
            known = answer[len(sequence.answer) :][:number]
            sequence.drafts = [(token + (self.generator.random() < self.errors)) % 512 for token in known]


def engine_of(model: GlmMoe, num_pages: int = 64, oracle: Oracle | None = None, **options: object) -> Engine:
    runner = WholeModel(model, with_mtp=options.get("drafter") == "mtp")
    config = EngineConfig(**({"page_size": 4} | options))
    engine = Engine(runner, replace(config, cache_bytes=num_pages * runner.page_bytes(config.page_size)))
    if oracle is not None:
        engine.speculation = Speculation(oracle, engine.scheduler, config.num_drafts, config.max_draft_tokens)
    return engine


def run(engine: Engine) -> dict[tuple[int, int], Sample]:
    """All answers, with every page accounted for after every step."""
    found: dict[tuple[int, int], Sample] = {}
    while not engine.is_idle:
        for update in engine.step():
            found.setdefault((update.request, update.sample), Sample()).add(update)
        engine.check()
    return found


SETTINGS: list[dict[str, object]] = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"top_p": 0.9, "top_k": 100, "min_new_tokens": 1},
    {"logprobs": 2, "prompt_logprobs": True, "experts": True},
]


def some_requests(number: int) -> list[tuple[list[int], SamplingParams]]:
    generator = random.Random(number)
    beginning = [generator.randrange(512) for _ in range(24)]
    requests = []
    for _ in range(number):
        prompt = beginning[: generator.randint(0, 24)] + [
            generator.randrange(512) for _ in range(generator.randint(1, 9))
        ]
        params = SamplingParams(
            max_new_tokens=generator.randint(1, 20),
            temperature=generator.choice([0.0, 1.0]),
            seed=generator.randrange(1000),
            num_samples=generator.choice([1, 1, 3]),
            stop_ids=tuple(generator.sample(range(512), 12)),
            **generator.choice(SETTINGS),
        )
        requests.append((prompt, params))
    return requests


@pytest.mark.parametrize(
    ("drafter", "errors", "options"),
    [
        ("mtp", 0, {}),
        ("mtp", 0, {"num_pages": 24, "num_drafts": 4, "max_sequences": 4}),
        ("ngram", 0, {}),
        ("oracle", 0, {"num_drafts": 5, "max_draft_tokens": 64}),
        ("oracle", 0.3, {"num_drafts": 3, "max_step_tokens": 16, "max_sequences": 4}),
        ("oracle", 0.3, {"num_drafts": 4, "num_pages": 20, "max_draft_tokens": 64}),
        ("oracle", 0.3, {"num_drafts": 3, "page_size": 1, "num_pages": 70, "max_sequences": 5}),
        ("oracle", 0.3, {"num_drafts": 2, "share_prefixes": False, "max_draft_tokens": 64}),
    ],
    ids=str,
)
def test_drafts_change_no_token(model: GlmMoe, drafter: str, errors: float, options: dict[str, int]) -> None:
    requests = some_requests(12)
    plain = engine_of(model)
    for prompt, params in requests:
        plain.add(prompt, params)
    expected = run(plain)
    if drafter == "oracle":
        answers = {(tuple(requests[number][0]), sample): one.tokens for (number, sample), one in expected.items()}
        engine = engine_of(model, oracle=Oracle(answers, errors), **options)
    else:
        engine = engine_of(model, drafter=drafter, **options)
    for prompt, params in requests:
        engine.add(prompt, params)
    found = run(engine)
    assert found.keys() == expected.keys()
    for key, one in found.items():
        assert_same(one, expected[key])
    counts = [sum(each) for each in zip(*(one.drafts for one in found.values()), strict=True)]
    assert engine.metrics.num_accepted == counts[1]
    assert engine.metrics.num_drafted >= counts[0]  # those behind a stop token are not looked at
    if drafter == "oracle":
        assert engine.metrics.acceptance == 1 if errors == 0 else 0.3 < engine.metrics.acceptance < 1


def assert_same(found: Sample, expected: Sample) -> None:
    assert (found.tokens, found.finished) == (expected.tokens, expected.finished)
    details = found.details, expected.details
    logprobs = [[one.logprob for one in sample.logprobs] for sample in (found, expected)]
    if details[0] is not None and details[1] is not None:
        logprobs = [
            each + [one.logprob for one in of.prompt_logprobs] for each, of in zip(logprobs, details, strict=True)
        ]
        assert torch.equal(details[0].experts_TMK, details[1].experts_TMK)
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)  # routers compute in fp32


def test_distribution_of_drafted_tokens() -> None:
    """Chi-square over all answers of three tokens, of which the drafter had a hand in the last two."""
    torch.set_num_threads(1)
    vocab_size, number, prompt = 4, 2000, [1, 2, 3]
    model = GlmMoe(tiny_config(vocab_size=vocab_size, eos_token_id=[0], pad_token_id=0))
    randomize_(model)
    model.eval()
    engine = engine_of(model, 512, drafter="mtp", num_drafts=2, max_draft_tokens=512, max_sequences=128)
    params = SamplingParams(max_new_tokens=4, temperature=0.9, seed=5, num_samples=number)
    (samples,) = engine.generate([prompt], params)
    assert 0.1 < engine.metrics.acceptance < 0.9
    found = Counter(tuple(sample.tokens[:3]) for sample in samples)
    answers = list(itertools.product(range(vocab_size), repeat=3))
    logits_BSV = model.logits(torch.tensor([[*prompt, *answer] for answer in answers])).double()
    logp_BSV = (logits_BSV / 0.9).log_softmax(dim=-1)[:, len(prompt) - 1 : -1]
    logp_B = logp_BSV.gather(2, torch.tensor(answers)[:, :, None]).squeeze(2).sum(dim=1)
    expected = (number * logp_B.exp()).tolist()
    frequent = [(found[answer], mean) for answer, mean in zip(answers, expected, strict=True) if mean >= 5]
    rare = number - sum(seen for seen, _ in frequent), number - sum(mean for _, mean in frequent)
    chi_square = sum((seen - mean) ** 2 / mean for seen, mean in [*frequent, rare] if mean)
    # Mean and deviation of a chi-square of d degrees of freedom are d and sqrt(2 d); four deviations are 1 in 30,000.
    freedom = len(frequent)
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_fewer_drafts_where_many_decode(model: GlmMoe) -> None:
    engine = engine_of(model, drafter="mtp", num_drafts=3, max_draft_tokens=8)
    most = []
    for _ in range(9):
        engine.add([1, 2, 3], SamplingParams(max_new_tokens=40))
        engine.step()
        most.append(max(len(sequence.drafts) for sequence in engine.scheduler.running))
    assert most == [3, 3, 2, 2, 1, 1, 1, 1, 0]


def test_drafts_get_pages_that_are_left(model: GlmMoe) -> None:
    """Two sequences fill two pages each; the fifth is for what is drafted for the first one, and none is left."""
    engine = engine_of(model, 5, drafter="mtp", num_drafts=4, share_prefixes=False)
    for _ in range(2):
        engine.add([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_new_tokens=4))
    engine.step()
    assert [(len(one.pages), len(one.drafts)) for one in engine.scheduler.running] == [(3, 2), (2, 0)]


def test_drafts_leave_the_pages_of_the_next_tokens(model: GlmMoe) -> None:
    """The page that is left is for the next token of the second sequence."""
    engine = engine_of(model, 5, drafter="mtp", num_drafts=4, share_prefixes=False)
    engine.add([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_new_tokens=4))
    engine.add([1, 2, 3, 4, 5, 6, 7, 8], SamplingParams(max_new_tokens=4))
    engine.step()
    assert [(len(one.pages), len(one.drafts)) for one in engine.scheduler.running] == [(2, 0), (3, 2)]
    assert engine.scheduler.num_preempted == 0


def test_pages_of_wrong_drafts_are_taken_back(model: GlmMoe) -> None:
    wrong = Oracle({((1, 2, 3), 0): [511] * 20}, errors=0)
    engine = engine_of(model, oracle=wrong, page_size=1, num_drafts=4)
    engine.add([1, 2, 3], SamplingParams(max_new_tokens=20))
    engine.step()
    (sequence,) = engine.scheduler.running
    assert len(sequence.pages) == len(sequence.tokens) + 4
    engine.speculation.num_drafts = 1
    engine.step()
    assert (engine.metrics.num_drafted, engine.metrics.num_accepted) == (4, 0)
    assert len(sequence.pages) == len(sequence.tokens) + 1


@pytest.mark.parametrize("recompute", [False, True])
def test_other_weights_before_drafts_are_checked(model: GlmMoe, recompute: bool) -> None:
    """The weights are the same here: what is left of the drafts must not count as computed."""
    plain = engine_of(model)
    params = SamplingParams(max_new_tokens=12)
    ((expected,),) = plain.generate([[1, 2, 3]], params)
    engine = engine_of(model, oracle=Oracle({((1, 2, 3), 0): expected.tokens}, errors=0), num_drafts=3)
    engine.add([1, 2, 3], params)
    tokens = [update.token for _ in range(2) for update in engine.step()]
    assert len(tokens) == 5
    engine.weights_changed(recompute=recompute)
    while not engine.is_idle:
        tokens += [update.token for update in engine.step()]
        engine.check()
    assert tokens == expected.tokens
