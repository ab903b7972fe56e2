"""A step of a model by the native kernels against its modules."""

import copy

import pytest
import torch

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.native import fits
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.scheduler import Work
from glmforge.generate.sequence import Request, Sequence
from glmforge.generate.step import StepTokens, step_tokens
from glmforge.kernels.native.calls import is_available
from glmforge.model import GlmMoe
from helpers.devices import relative_error
from helpers.models import randomize_, tiny_config

pytestmark = pytest.mark.skipif(not is_available(), reason="no C++ compiler")

PAGE_SIZE = 4
VARIANTS = {
    "as 4.6": {},
    "as Air": {"use_qk_norm": False, "attention_bias": True, "first_k_dense_replace": 0},
    "tied, odd sizes, weights as they are": {
        "tie_word_embeddings": True,
        "hidden_size": 36,
        "intermediate_size": 50,
        "moe_intermediate_size": 21,
        "head_dim": 12,
        "norm_topk_prob": False,
        "n_shared_experts": 2,
        "vocab_size": 509,
    },
    "vectors of all widths, three heads to a key": {
        "head_dim": 112,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
}


def model_of(overrides: dict[str, object], weights: torch.dtype, compute: torch.dtype) -> GlmMoe:
    model = GlmMoe(tiny_config(**overrides))
    randomize_(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(weights)
    model.compute_dtype = compute
    return model.eval()


def exact(model: GlmMoe) -> GlmMoe:
    """The same weights in float64."""
    model = copy.deepcopy(model).double()
    model.compute_dtype = torch.float64
    return model


def two_steps(runner: WholeModel) -> list[torch.Tensor]:
    """Logits of a step of a prompt, a piece of one and single tokens, and of the next one."""
    runner.allocate(64, PAGE_SIZE)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(509, (3, 40), generator=generator).tolist()
    sequences = [
        Sequence(Request(number, (), SamplingParams()), 0, tokens, pages=list(range(20 * number, 20 * number + 10)))
        for number, tokens in enumerate(ids)
    ]
    logits = []
    for counts in ([40, 17, 1], [0, 23, 39]):
        steps = [Work(sequence, count) for sequence, count in zip(sequences, counts, strict=True) if count]
        tokens = step_tokens(steps, PAGE_SIZE, torch.device("cpu"))
        wanted = torch.arange(len(tokens.ids_T))
        logits.append(runner.run(StepTokens(tokens.ids_T, tokens.positions_T, tokens.paged, wanted)))
        for work in steps:
            work.sequence.num_cached += work.num_tokens
    return logits


def errors(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Of each token's logits, relative to their size."""
    return (found.double() - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_logits_in_float32(overrides: dict[str, object]) -> None:
    model = model_of(overrides, torch.float32, torch.float32)
    runner = WholeModel(model)
    assert runner.is_native
    for found, expected in zip(two_steps(runner), two_steps(WholeModel(exact(model))), strict=True):
        assert found.dtype == torch.float32
        assert errors(found, expected).max() < 1e-5  # sums in another order


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32], ids=str)
def test_logits_in_bfloat16(overrides: dict[str, object], weights: torch.dtype) -> None:
    """As near to the exact ones as the modules' are, which round more often. The typical token is compared: one whose
    choice of experts is nearly even may get others by rounding."""
    model = model_of(overrides, weights, torch.bfloat16)
    runner = WholeModel(model)
    assert runner.is_native
    steps = (two_steps(runner), two_steps(WholeModel(model, native=False)), two_steps(WholeModel(exact(model))))
    for found, by_modules, expected in zip(*steps, strict=True):
        assert errors(found, expected).median() < min(0.1, 1.1 * errors(by_modules, expected).median())


def test_masters_count_as_rounded() -> None:
    """As the modules cast them, but for the routers', which are computed in float32: bit for bit."""
    masters = model_of({"attention_bias": True}, torch.float32, torch.bfloat16)
    as_rounded = copy.deepcopy(masters)
    for name, parameter in as_rounded.named_parameters():
        if ".gate.weight" not in name:
            parameter.data = parameter.data.bfloat16().float()
    runner = WholeModel(as_rounded)
    assert runner.is_native  # a copy of a model as well
    before = two_steps(WholeModel(masters))
    for found, expected in zip(two_steps(runner), before, strict=True):
        assert found.equal(expected)
    masters.model.layers["1"].mlp.gate.weight.data.mul_(1 + 2**-12)
    assert not two_steps(WholeModel(masters))[1].equal(before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_do_not_depend_on_the_step(dtype: torch.dtype) -> None:
    """Whatever shares a step, and however a prompt is cut into pieces: bit for bit."""
    prompts = [[5, 6, 7], list(range(100, 160)), [5, 6, 7, 8], list(range(100, 148)), [9] * 33]
    model = model_of({}, dtype, dtype)

    def tokens_of(num_together: int, **options: int) -> list[list[int]]:
        runner = WholeModel(model)
        config = EngineConfig(64 * runner.page_bytes(PAGE_SIZE), PAGE_SIZE, **options)
        engine = Engine(runner, config)
        params = SamplingParams(max_new_tokens=24)
        groups = [prompts[i : i + num_together] for i in range(0, len(prompts), num_together)]
        return [answer[0].tokens for group in groups for answer in engine.generate(group, params)]

    alone = tokens_of(1)
    assert tokens_of(len(prompts)) == alone
    assert tokens_of(len(prompts), max_step_tokens=7) == alone


def test_weights_that_moved_or_changed_are_read() -> None:
    model = model_of({}, torch.float32, torch.float32)
    runner = WholeModel(model)
    before = two_steps(runner)[0]
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    torch.testing.assert_close(two_steps(runner)[0], 2 * before)
    moved = model.model.layers["2"].mlp.experts.down_proj
    moved.data = -moved.data
    with_experts_negated = two_steps(runner)[0]
    assert relative_error(with_experts_negated, two_steps(WholeModel(model, native=False))[0]) < 1e-5
    assert relative_error(with_experts_negated, 2 * before) > 1e-2


def test_a_model_that_is_not_as_written_goes_module_by_module() -> None:
    model = model_of({}, torch.float32, torch.float32)
    assert fits(model)
    model.set_capacity_factor(1.0)
    assert not fits(model)
    model.set_capacity_factor(None)
    own = model.layers[1].self_attn.o_proj
    runner = WholeModel(model)
    before = two_steps(runner)[0]
    own.matmul = lambda x, weight, **options: -x @ weight.T
    runner.weights_changed()
    assert not runner.is_native
    assert relative_error(two_steps(runner)[0], before) > 1e-2
    assert not fits(model_of({"n_group": 4, "topk_group": 2}, torch.float32, torch.float32))
    assert not fits(model_of({}, torch.float64, torch.float64))
