"""Log-probabilities and experts are those of one full forward, however the engine came to the tokens."""

import itertools

import pytest
import torch
from torch import Tensor

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.record import recorded_experts
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe

PROMPT = list(range(100, 130))
OPTIONS = [{}, {"max_step_tokens": 8}, {"num_pages": 16}, {"share_prefixes": False}]
"""Whole prompts, pieces of them, too few pages for all, and no shared pages."""
ABSOLUTE = 1e-5
"""What is asked for; the model is float64, where they agree to 1e-12."""


def engine_of(model: GlmMoe, num_pages: int = 64, **options: object) -> Engine:
    runner = WholeModel(model)
    return Engine(runner, EngineConfig(num_pages * runner.page_bytes(4), 4, **options))


def whole_forward(model: GlmMoe, tokens: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """logprobs_SV after each token, and the experts of each [S, M, K] in ascending order."""
    with recorded_experts([model]) as experts:
        logits_SV = model.logits(torch.tensor([tokens]))[0]
    return (logits_SV / temperature).log_softmax(dim=-1), torch.stack(experts, dim=1).sort(dim=-1).values


def check_logprobs(logprobs_SV: Tensor, tokens: list[int], found: list[TokenLogprob], num_top: int) -> None:
    for row_V, token, (logprob, top, _) in zip(logprobs_SV, tokens, found, strict=True):
        assert logprob == pytest.approx(float(row_V[token]), abs=ABSOLUTE)
        wanted = row_V.topk(num_top)
        assert [index for index, _ in top] == wanted.indices.tolist()
        assert [value for _, value in top] == pytest.approx(wanted.values.tolist(), abs=ABSOLUTE)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_of_prompt_and_answer(model: GlmMoe, options: dict[str, int]) -> None:
    """Filters and penalties do not touch what is told."""
    engine = engine_of(model, **options)
    common = {"max_new_tokens": 10, "temperature": 0.7, "top_k": 20, "frequency_penalty": 0.5}
    params = [
        SamplingParams(**common, seed=5, logprobs=3, prompt_logprobs=True, experts=True, num_samples=3),
        SamplingParams(**common, seed=6),
        SamplingParams(**common, seed=7, logprobs=0, prompt_logprobs=True),
        SamplingParams(**common, seed=8, experts=True),
    ]
    if "num_pages" not in options:
        engine.generate(
            [PROMPT], SamplingParams(max_new_tokens=2)
        )  # its pages may be found, and must not be used for what is told
    samples, (plain,), (scored,), (recorded,) = engine.generate([PROMPT] * 4, params)
    if "num_pages" in options:
        assert engine.scheduler.num_preempted > 0
    for sample in [*samples, scored]:
        tokens = PROMPT + sample.tokens
        logprobs_SV, _ = whole_forward(model, tokens, 0.7)
        num_top = 3 if sample is not scored else 0
        assert sample.details is not None
        check_logprobs(logprobs_SV[len(PROMPT) - 1 : -1], sample.tokens, sample.logprobs, num_top)
        check_logprobs(logprobs_SV[: len(PROMPT) - 1], PROMPT[1:], sample.details.prompt_logprobs, num_top)
    for sample in [*samples, recorded]:
        _, experts_SMK = whole_forward(model, PROMPT + sample.tokens[:-1], 1.0)
        assert sample.details is not None
        assert sample.details.experts_TMK is not None
        assert torch.equal(sample.details.experts_TMK.sort(dim=-1).values.long(), experts_SMK)
    assert not plain.logprobs
    assert plain.details is None


def test_temperature_zero_counts_as_one(model: GlmMoe) -> None:
    ((sample,),) = engine_of(model).generate([PROMPT], SamplingParams(max_new_tokens=3, logprobs=1))
    logprobs_SV, _ = whole_forward(model, PROMPT + sample.tokens, 1.0)
    check_logprobs(logprobs_SV[len(PROMPT) - 1 : -1], sample.tokens, sample.logprobs, 1)
    assert [one.top[0][0] for one in sample.logprobs] == sample.tokens


def test_in_fp32(model: GlmMoe) -> None:
    """To 1e-5 of one full forward in float64, as fp32 allows for a model whose logits are about 1."""
    single = GlmMoe(model.config)
    single.load_state_dict(model.state_dict())
    single.float().eval()
    params = SamplingParams(max_new_tokens=10, temperature=1.0, seed=1, logprobs=0, prompt_logprobs=True, experts=True)
    samples = list(itertools.chain(*engine_of(single).generate([PROMPT, PROMPT[:7]], params)))
    for prompt, sample in zip([PROMPT, PROMPT[:7]], samples, strict=True):
        logprobs_SV, experts_SMK = whole_forward(model, prompt + sample.tokens, 1.0)
        assert sample.details is not None
        check_logprobs(logprobs_SV[len(prompt) - 1 : -1], sample.tokens, sample.logprobs, 0)
        check_logprobs(logprobs_SV[: len(prompt) - 1], prompt[1:], sample.details.prompt_logprobs, 0)
        assert sample.details.experts_TMK is not None
        assert torch.equal(sample.details.experts_TMK.sort(dim=-1).values.long(), experts_SMK[:-1])


def test_other_weights_before_the_prompt_is_through(model: GlmMoe) -> None:
    """What is told is all of one model, the new one."""
    engine = engine_of(model, max_step_tokens=8)
    engine.add(PROMPT, SamplingParams(max_new_tokens=2, prompt_logprobs=True, experts=True))
    kept = model.model.norm.weight.detach().clone()
    try:
        assert engine.step() == []
        with torch.no_grad():
            model.model.norm.weight.copy_(kept.flip(0) + 1)
        engine.weights_changed()
        updates = []
        while not engine.is_idle:
            updates += engine.step()
        details = updates[-1].details
        assert details is not None
        logprobs_SV, experts_SMK = whole_forward(model, [*PROMPT, updates[0].token], 1.0)
        check_logprobs(logprobs_SV[: len(PROMPT) - 1], PROMPT[1:], details.prompt_logprobs, 0)
        assert details.experts_TMK is not None
        assert torch.equal(details.experts_TMK.sort(dim=-1).values.long(), experts_SMK)
    finally:
        with torch.no_grad():
            model.model.norm.weight.copy_(kept)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("options", [{}, {"drafter": "ngram"}], ids=str)
def test_other_weights_within_an_answer(model: GlmMoe, options: dict[str, str], recompute: bool) -> None:
    """Experts are those of the pass that the token behind them was sampled by: the old weights' for what the old ones
    gave, also when pages run out later and all is computed again."""
    engine = engine_of(model, num_pages=18, **options)
    prompts = [[*PROMPT[:4], start, *PROMPT[:4]] for start in (1, 2, 3)]
    common = {"max_new_tokens": 24, "repetition_penalty": 0.5, "logprobs": 0}  # it repeats itself: drafts are right
    numbers = [engine.add(prompt, SamplingParams(**common, experts=True)) for prompt in prompts]
    tokens, updates = {number: list(prompt) for number, prompt in zip(numbers, prompts, strict=True)}, []

    def step() -> None:
        for update in engine.step():
            tokens[update.request].append(update.token)
            updates.append(update)

    while len(tokens[numbers[-1]]) < len(prompts[-1]) + 4:
        step()
    given = {number: list(ids) for number, ids in tokens.items()}
    old = {number: whole_forward(model, ids[:-1], 1.0)[1] for number, ids in given.items()}
    num_preempted = engine.scheduler.num_preempted
    first = model.layers[0].input_layernorm.weight
    kept = first.detach().clone()
    try:
        with torch.no_grad():
            first.copy_(kept.flip(0) + 1)
        engine.weights_changed(recompute=recompute)
        while not engine.is_idle:
            step()
        new = {number: whole_forward(model, ids[:-1], 1.0)[1] for number, ids in tokens.items()}
    finally:
        with torch.no_grad():
            first.copy_(kept)
    assert engine.scheduler.num_preempted > num_preempted
    assert engine.metrics.num_accepted > 0 or not options
    for update in updates:
        if update.finished is None:
            continue
        assert update.details is not None
        assert update.details.experts_TMK is not None
        experts_TMK = update.details.experts_TMK.sort(dim=-1).values.long()
        num_old = len(given[update.request]) - 1
        assert torch.equal(experts_TMK[:num_old], old[update.request])
        assert not torch.equal(new[update.request][:num_old], old[update.request])
        if recompute:
            assert torch.equal(experts_TMK[num_old:], new[update.request][num_old:])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("start", [0, 1, 2, 13, 16, 29, 30, 31])
def test_from_a_place_of_the_prompt_on(model: GlmMoe, options: dict[str, int], start: int) -> None:
    """What precedes it is taken from the cache, and the log-probabilities are those of the whole forward."""
    engine = engine_of(model, **options)
    engine.generate([PROMPT[:-3]], SamplingParams(max_new_tokens=1))
    before = engine.metrics.num_computed
    params = SamplingParams(max_new_tokens=1, logprobs=2, prompt_logprobs=True, prompt_logprobs_from=start)
    ((sample,),) = engine.generate([PROMPT], params)
    logprobs_SV, _ = whole_forward(model, PROMPT, 1.0)
    assert sample.details is not None
    first = max(start, 1)
    check_logprobs(logprobs_SV[first - 1 : len(PROMPT) - 1], PROMPT[first:], sample.details.prompt_logprobs, 2)
    if options == {} and start >= 29:
        assert engine.metrics.num_computed - before < 10


def test_of_named_tokens(model: GlmMoe) -> None:
    named = [(5, 3, 5), (), (300,)]
    params = [SamplingParams(max_new_tokens=2, logprobs=index, logprob_tokens=ids) for index, ids in enumerate(named)]
    for (sample,), ids in zip(engine_of(model).generate([PROMPT] * 3, params), named, strict=True):
        logprobs_SV, _ = whole_forward(model, PROMPT + sample.tokens, 1.0)
        for row_V, one in zip(logprobs_SV[len(PROMPT) - 1 : -1], sample.logprobs, strict=True):
            assert one.named == pytest.approx(row_V[list(ids)].tolist(), abs=ABSOLUTE)
    with pytest.raises(RequestError, match="logprob_tokens: goes with logprobs"):
        SamplingParams(logprob_tokens=(3,))
