"""Generation from the KV cache against generation by running the whole text again for every token."""

import sys

import pytest
import torch

from glmforge.kernels import cuda_graph
from glmforge.model import GlmMoe, Sampling
from glmforge.model.cache import KVCache
from glmforge.model.generate import check_recordable
from helpers.models import randomize_, tiny_config
from helpers.recording import record_operations


@pytest.fixture(scope="module")
def model() -> GlmMoe:
    model = GlmMoe(tiny_config())
    randomize_(model)
    return model


def prompts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(0, 512, (length,), generator=generator).tolist() for length in lengths]


def greedy_without_cache(model: GlmMoe, prompt: list[int], num_tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(model.logits(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt) :]


@pytest.mark.parametrize("lengths", [(7,), (3, 11, 1), (5, 5)], ids=str)
def test_cached_equals_uncached(model: GlmMoe, lengths: tuple[int, ...]) -> None:
    prompts = prompts_of(*lengths)
    cached = model.generate(prompts, max_new_tokens=12)
    assert cached == [greedy_without_cache(model, prompt, 12) for prompt in prompts]


def test_cached_logits_equal_uncached(model: GlmMoe) -> None:
    prompts = prompts_of(4, 9)
    cache = KVCache(model.config, 2, 16, torch.float32, torch.device("cpu"))
    padded_BS = torch.tensor([prompts[0] + [0] * 5, prompts[1]])
    logits_BV = model.decode(padded_BS, torch.tensor([4, 9]), cache)
    next_BS = torch.tensor([[17], [23]])
    following_BV = model.decode(next_BS, torch.tensor([1, 1]), cache)
    for row, prompt in enumerate(prompts):
        # The same sums in other tiles: a few units in the last place of logits of scale 10.
        full = model.logits(torch.tensor([prompt + next_BS[row].tolist()]))[0]
        torch.testing.assert_close(logits_BV[row], full[-2], rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(following_BV[row], full[-1], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_p=0.9)], ids=["greedy", "sampled"])
def test_replayed_steps_generate_the_same(model: GlmMoe, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_new_tokens": 12, "sampling": sampling, "seed": 0}
    expected = model.generate(prompts_of(3, 11, 1), **options)
    monkeypatch.setattr(cuda_graph, "record", record_operations)
    # Not by its path: in `glmforge.model` the function `generate` hides the module.
    monkeypatch.setattr(sys.modules[check_recordable.__module__], "check_recordable", lambda device, dtype: None)
    decoded = []
    decode = GlmMoe.decode
    monkeypatch.setattr(GlmMoe, "decode", lambda *args: decoded.append(args) or decode(*args))
    assert model.generate(prompts_of(3, 11, 1), **options, cuda_graph=True) == expected
    assert len(decoded) == 3, "the prompts, the first step, the recording"


@pytest.mark.parametrize(
    ("device", "dtype", "message"), [("cpu", torch.bfloat16, "is on cpu"), ("cuda", torch.float32, "compute_dtype")]
)
def test_what_cannot_be_recorded_is_refused(device: str, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_recordable(torch.device(device), dtype)


def test_stop_tokens_end_each_row_by_itself(model: GlmMoe) -> None:
    prompts = prompts_of(3, 6)
    free = model.generate(prompts, max_new_tokens=10)
    stop = free[0][2]
    first, second = model.generate(prompts, max_new_tokens=10, stop_ids=[stop])
    assert first == free[0][: free[0].index(stop) + 1]
    assert second == (free[1] if stop not in free[1] else free[1][: free[1].index(stop) + 1])


def test_sampling_is_reproducible_and_follows_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(20_000, 1)
    draw = Sampling(temperature=1.0).choose(logits, torch.Generator().manual_seed(0))
    frequencies = draw.bincount(minlength=4) / len(draw)
    # Five standard errors of a frequency near 1/2 over 20,000 draws: 5 * 0.5 / sqrt(20000) = 0.018.
    torch.testing.assert_close(frequencies, torch.tensor([0.5, 0.3, 0.15, 0.05]), rtol=0, atol=0.018)
    again = Sampling(temperature=1.0).choose(logits, torch.Generator().manual_seed(0))
    assert torch.equal(draw, again)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, {0}), (0.6, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_sufficient_set(top_p: float, kept: set[int]) -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log().repeat(5_000, 1)
    draw = Sampling(temperature=1.0, top_p=top_p).choose(logits, torch.Generator().manual_seed(0))
    assert set(draw.tolist()) == kept


def test_padded_vocabulary_is_never_chosen(model: GlmMoe) -> None:
    rows = model.generate(prompts_of(3), max_new_tokens=40, sampling=Sampling(5.0, vocab_size=100), seed=0)
    assert max(rows[0]) < 100


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "at least one token"),
        ([[1, 512]], {}, "outside the vocabulary"),
        ([[-1]], {}, "outside the vocabulary"),
        ([[1] * 250], {"max_new_tokens": 7}, "max_position_embeddings"),
        ([[1]], {"max_new_tokens": 0}, "at least 1"),
        ([[1]], {"cuda_graph": True}, "is on cpu"),
    ],
)
def test_bad_input_is_named(model: GlmMoe, prompts: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate(prompts, **({"max_new_tokens": 4} | options))
