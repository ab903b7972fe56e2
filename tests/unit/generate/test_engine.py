"""Tokens are those of one full forward for each, whatever else the engine does at the time."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.admission import QueueFullError
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

PROMPTS = [[5, 6, 7], [1], list(range(100, 160)), [5, 6, 7, 8], list(range(100, 148))]
NUM_NEW = 12


def engine_of(model: GlmMoe, num_pages: int = 64, tokenizer: Tokenizer | None = None, **options: object) -> Engine:
    runner = WholeModel(model)
    config = EngineConfig(**({"page_size": 4} | options))
    config = replace(config, cache_bytes=num_pages * runner.page_bytes(config.page_size))
    return Engine(runner, config, tokenizer=tokenizer)


def one_after_another(model: GlmMoe, prompt: list[int], number: int) -> list[int]:
    """The likeliest tokens by a whole forward pass for each."""
    ids = list(prompt)
    for _ in range(number):
        ids.append(int(model.logits(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 8},
        {"num_pages": 19},
        {"share_prefixes": False},
        {"max_sequences": 2, "page_size": 16},
        {"page_size": 1, "num_pages": 100, "max_step_tokens": 3},
    ],
    ids=str,
)
def test_greedy_tokens(model: GlmMoe, options: dict[str, int]) -> None:
    engine = engine_of(model, **options)
    expected = [one_after_another(model, prompt, NUM_NEW) for prompt in PROMPTS]
    for prompt in PROMPTS:
        engine.add(prompt, SamplingParams(max_new_tokens=NUM_NEW))
    found: dict[int, list[int]] = {number: [] for number in range(len(PROMPTS))}
    while not engine.is_idle:
        for update in engine.step():
            found[update.request].append(update.token)
        engine.check()
    assert list(found.values()) == expected
    if options == {"num_pages": 19}:
        assert engine.scheduler.num_preempted > 0


@pytest.mark.parametrize(
    ("limits", "num_accepted", "words"),
    [
        ({"max_queued_requests": 1}, 3, r"1 waiting \(max_queued_requests is 1\)"),
        ({"max_queued_tokens": 63}, 2, r"4 tokens waiting and 60 more \(max_queued_tokens is 63\)"),
        ({"max_queued_tokens": 3}, 1, "4 tokens waiting and 1 more"),  # the first one may be longer
    ],
    ids=str,
)
def test_a_full_queue(model: GlmMoe, limits: dict[str, int], num_accepted: int, words: str) -> None:
    """Refuses one more for now; `generate` waits for room instead, and gives the same."""
    engine = engine_of(model, max_sequences=2, **limits)
    prompts = [PROMPTS[3], PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    if num_accepted == 2:
        prompts[:2] = [[5, 6, 7], [1]]
    params = SamplingParams(max_new_tokens=4, temperature=1.0, num_samples=2)
    for prompt in prompts[:num_accepted]:
        engine.add(prompt, params)
    with pytest.raises(QueueFullError, match=words):
        engine.add(prompts[num_accepted], params)
    while not engine.is_idle:
        engine.step()
        engine.check()
    assert engine.add(prompts[num_accepted], params) == num_accepted
    engine.cancel(num_accepted)
    unlimited = engine_of(model)
    limited = engine_of(model, max_sequences=2, **limits)
    assert limited.generate(prompts, params) == unlimited.generate(prompts, params)


def test_what_was_computed_is_found_again(model: GlmMoe) -> None:
    engine = engine_of(model)
    params = SamplingParams(max_new_tokens=4)
    first = engine.generate([PROMPTS[2]], params)
    engine.add(PROMPTS[2], params)
    engine.scheduler.next_step()
    (sequence,) = engine.scheduler.running
    assert sequence.num_cached == 56  # 14 pages; the last token is to be computed
    engine.cancel(1)
    assert engine.generate([PROMPTS[2]], params) == first


def test_samples_share_the_prompt(model: GlmMoe) -> None:
    engine = engine_of(model)
    params = SamplingParams(max_new_tokens=NUM_NEW, temperature=1.0, seed=7, num_samples=6)
    (samples,) = engine.generate([PROMPTS[3]], params)
    assert len({tuple(sample.tokens) for sample in samples}) > 1
    alone = engine_of(model, share_prefixes=False, num_pages=8, max_step_tokens=2)
    assert alone.generate([PROMPTS[3]], params) == [samples]


@pytest.mark.parametrize("says_so", [True, False])
def test_other_weights_in_between(model: GlmMoe, says_so: bool) -> None:
    """Tokens after the change are those of the new weights alone, and so are those of a prompt that was known."""
    engine = engine_of(model)
    engine.add(PROMPTS[0], SamplingParams(max_new_tokens=8))
    engine.generate([PROMPTS[2]], SamplingParams(max_new_tokens=1))
    sequence = engine.scheduler.sequences[0]
    num_old = len(sequence.tokens)
    weight = model.layers[0].input_layernorm.weight  # every key depends on it
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.copy_(kept.flip(0) + 1)
        if says_so:
            engine.weights_changed()
        ((sample,),) = engine.generate([PROMPTS[2]], SamplingParams(max_new_tokens=4))
        assert sample.tokens == one_after_another(model, PROMPTS[2], 4)
        while not engine.is_idle:
            engine.step()
            engine.check()
        new = sequence.tokens[num_old:]
        assert new == one_after_another(model, sequence.tokens[:num_old], len(new)) != []
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    old = sequence.tokens[len(PROMPTS[0]) : num_old]
    assert old == one_after_another(model, PROMPTS[0], len(old)) != []


def fused_step(weights: list[torch.nn.Parameter]) -> None:
    for weight in weights:
        weight.grad = weight.detach().flip(0)
    torch.optim.AdamW(weights, lr=0.1, fused=True).step()


def copy_data(weights: list[torch.nn.Parameter]) -> None:
    for weight in weights:
        weight.data.copy_(weight.data.flip(0) + 0.1)


@pytest.mark.parametrize("change", [fused_step, copy_data])
def test_a_change_that_pytorch_does_not_count(
    model: GlmMoe, change: Callable[[list[torch.nn.Parameter]], None]
) -> None:
    changed = deepcopy(model)
    engine = engine_of(changed)
    params = SamplingParams(max_new_tokens=4)
    before = engine.generate([PROMPTS[2]], params)
    change(list(changed.parameters()))
    ((sample,),) = engine.generate([PROMPTS[2]], params)
    assert [[sample]] != before
    assert sample.tokens == one_after_another(changed, PROMPTS[2], 4)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "is empty"),
        ([1, 512], {}, "token 512 is outside the vocabulary of 512"),
        ([-1], {}, "token -1 is outside the vocabulary of 512"),
        ([1] * 250, {"max_new_tokens": 7}, "need 257 positions, the model has 256"),
        ([1] * 256, {"max_new_tokens": 1}, "need 257 positions, the model has 256"),
        ([1] * 257, {"max_new_tokens": 1, "logprobs": 0, "logprob_tokens": [3]}, "need 257 positions"),
        ([1], {"banned_tokens": [512]}, "token 512 is outside the vocabulary of 512"),
        ([1], {"stop": ["x"]}, "stop: needs text, but the engine has only"),
        ([1] * 30, {"max_new_tokens": 7}, "do not fit into a cache of 36 tokens"),
    ],
)
def test_a_request_that_can_never_be_served(
    model: GlmMoe, prompt: list[int], params: dict[str, object], words: str
) -> None:
    engine = engine_of(model, num_pages=9)
    with pytest.raises(RequestError, match=words):
        engine.add(prompt, SamplingParams(**params))
    assert engine.generate([[1]], SamplingParams(max_new_tokens=1))[0][0].finished == "length"


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


def test_an_answer_ends_at_a_stop_string(model: GlmMoe, tokenizer: Tokenizer) -> None:
    """The text before it; an earlier one passes while the answer has too few tokens."""
    params = SamplingParams(max_new_tokens=60, temperature=1.0, seed=1, banned_tokens=tokenizer.stop_ids)
    engine = engine_of(model, tokenizer=tokenizer)
    ((free,),) = engine.generate([PROMPTS[0]], params)
    assert free.text == tokenizer.decode(free.tokens)
    stop = free.text[20:23]
    ((sample,),) = engine.generate([PROMPTS[0]], replace(params, stop=["no such text", stop]))
    assert (sample.text, sample.finished) == (free.text.partition(stop)[0], "stop")
    assert sample.tokens == free.tokens[: len(sample.tokens)]
    assert stop in tokenizer.decode(sample.tokens)
    assert stop not in tokenizer.decode(sample.tokens[:-1])
    later = replace(params, stop=[stop], min_new_tokens=len(sample.tokens) + 1)
    ((longer,),) = engine.generate([PROMPTS[0]], later)
    assert longer.text.startswith(sample.text + stop)


def test_no_stop_token_before_the_minimum(model: GlmMoe) -> None:
    engine = engine_of(model)
    ((free,),) = engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=8))
    params = SamplingParams(max_new_tokens=8, stop_ids=free.tokens[2:3], min_new_tokens=5)
    ((sample,),) = engine.generate([PROMPTS[0]], params)
    assert sample.tokens[:2] == free.tokens[:2]
    assert not set(sample.tokens[:4]) & set(params.stop_ids)
    ((sample,),) = engine.generate([PROMPTS[0]], replace(params, min_new_tokens=3))
    assert (sample.tokens, sample.finished) == (free.tokens[:3], "stop")


def test_requests_without_a_seed_take_the_engines(model: GlmMoe) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=1.0)
    first, second = engine_of(model).generate([[1], [1]], params)
    assert first != second
    assert engine_of(model).generate([[1], [1]], params) == [first, second]
    assert engine_of(model, seed=1).generate([[1]], params) != [first]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_sequences": 0}, "max_sequences: 0 is not 1 or more"),
        ({"cache_bytes": 100}, "cache_bytes: 100 is less than a page of 16"),
    ],
)
def test_limits_that_cannot_be(model: GlmMoe, limits: dict[str, int], words: str) -> None:
    with pytest.raises(GlmforgeError, match=words):
        Engine(model, EngineConfig(**limits))


def test_a_model_in_training_generates_as_in_evaluation(model: GlmMoe) -> None:
    params = SamplingParams(max_new_tokens=NUM_NEW)
    expected = engine_of(model).generate(PROMPTS, params)
    model.set_balance("sinkhorn")
    model.train()
    try:
        assert engine_of(model).generate(PROMPTS, params) == expected
        assert all(module.training for module in model.modules())
    finally:
        model.set_balance("bias")
        model.eval()
