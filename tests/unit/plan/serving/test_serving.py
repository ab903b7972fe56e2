"""What fits where, and how fast it is at most, by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config import load_model_config
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.serving.deployment import (
    Deployment,
    fewest_gpus,
    generation_step,
    largest_batch,
    prefill_seconds,
    visited_share,
)
from glmforge.plan.serving.formats import WEIGHT_FORMATS, cache_bytes_per_token, find_format, weight_bytes

GLM46, AIR = load_model_config("glm46_355b"), load_model_config("glm45_air_106b")


def deployment(
    model: Any = GLM46, gpus: int = 8, gpu: str = "H100 SXM", weights: str = "bf16", **more: Any
) -> Deployment:
    return Deployment(model, find_machine(gpu), gpus, find_format(weights), **more)


def test_weights_in_bf16_are_those_of_the_checkpoint() -> None:
    buffers = 90 * 160
    sizes = weight_bytes(GLM46, find_format("bf16"))
    assert sizes.total == 2 * (356_785_898_816 - buffers) + 4 * buffers
    assert sizes.embedding == sizes.head == 2 * 775_946_240
    assert sizes.experts == 2 * 89 * 160 * 23_592_960


@pytest.mark.parametrize(("stored", "gigabytes"), [("bf16", 713.6), ("fp8", 358.5), ("int4", 186.4), ("q4_0", 200.8)])
def test_formats(stored: str, gigabytes: float) -> None:
    assert weight_bytes(GLM46, find_format(stored)).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_blocks_of_llama_cpp() -> None:
    """18 bytes for 32 elements, all matrices but routers."""
    q4_0 = weight_bytes(AIR, find_format("q4_0"))
    assert q4_0.head == 620_756_992 * 18 / 32
    assert q4_0.experts == 45 * 128 * 17_301_504 * 18 / 32


def test_caches() -> None:
    assert cache_bytes_per_token(GLM46, "bf16") * 202_752 / 1e9 == pytest.approx(76.4, abs=0.05)
    assert cache_bytes_per_token(GLM46, "fp8") == 376_832 / 2
    assert cache_bytes_per_token(GLM46, "bf16", with_mtp=True) == 376_832 * 93 / 92


@pytest.mark.parametrize(
    ("gpu", "gpus", "weights", "model", "fits"),
    [
        ("H100 SXM", 8, "bf16", GLM46, False),  # 714 GB in 640
        ("H200 SXM", 8, "bf16", GLM46, True),
        ("H100 SXM", 8, "fp8", GLM46, True),
        ("RTX 4090", 2, "q4_0", AIR, False),  # 61 GB in 48
        ("RTX 4090", 4, "q4_0", AIR, True),
    ],
)
def test_what_fits(gpu: str, gpus: int, weights: str, model: Any, fits: bool) -> None:
    assert deployment(model, gpus, gpu, weights).fits(8192) == fits


def test_fewest_gpus() -> None:
    assert fewest_gpus(deployment(), 202_752) == 16  # 790 GB of 72 each: 11, and so two nodes
    assert fewest_gpus(deployment(weights="fp8"), 202_752) == 8
    assert fewest_gpus(deployment(AIR, weights="int4"), 8192) == 1
    for length in (1, 8192, 10**7):
        number = fewest_gpus(deployment(AIR), length)
        assert deployment(AIR, number).fits(length)
        assert not deployment(AIR, number // 2).fits(length)


def test_a_step_of_one_sequence_reads_its_weights_once() -> None:
    """Active weights and head in bf16, and the cache, over the copy's rate of 3.0 TB/s of each of the eight."""
    step = generation_step(deployment(), 1, 8192)
    num_bytes = 2 * 32_856_319_904 + 376_832 * 8192
    assert step.read == pytest.approx(num_bytes / (8 * 3.0e12), rel=1e-4)
    assert step.bottleneck in ("memory", "links")
    assert step.tokens_per_second == 1 / step.seconds


def test_experts_that_a_batch_visits() -> None:
    assert visited_share(GLM46, 1) == pytest.approx(8 / 160)
    assert visited_share(GLM46, 2) == pytest.approx(8 / 160 + (152 / 160) * (8 / 160))
    assert visited_share(GLM46, 1000) == pytest.approx(1)


def test_drafts_that_stand_save_passes() -> None:
    plain, drafting = (generation_step(deployment(acceptance=share), 64, 8192) for share in (None, 0.8))
    assert drafting.tokens == 1.8
    assert drafting.read > plain.read
    assert drafting.tokens_per_second > plain.tokens_per_second
    none = generation_step(deployment(acceptance=0.0), 64, 8192)
    assert none.tokens_per_second < plain.tokens_per_second


def test_prefill_runs_at_the_rate_of_matmuls() -> None:
    """Of 32K tokens: two FLOPs for each active element, and half the square of attention."""
    flops = 32_768 * 2 * (32_078_069_760 + 32_768 * 12_288 * 92)
    one = deployment(gpus=1)
    assert prefill_seconds(one, 32_768) == pytest.approx(flops / 798e12, rel=1e-3)


def test_largest_batch() -> None:
    served = deployment(weights="fp8", gpu="H200 SXM")
    batch = largest_batch(served, 8192, 0.03)
    assert generation_step(served, batch, 8192).seconds_per_token <= 0.03
    assert generation_step(served, batch + 1, 8192).seconds_per_token > 0.03
    assert largest_batch(served, 8192, 10.0) == served.max_sequences(8192)
    assert largest_batch(deployment(), 8192, 0.03) == 0


SERVED = {form.name: deployment(AIR, weights=form.name) for form in WEIGHT_FORMATS}
FASTER = {form.name: deployment(AIR, gpu="H200 SXM", weights=form.name) for form in WEIGHT_FORMATS}


@settings(max_examples=50, deadline=None)
@given(batch=st.integers(1, 512), length=st.integers(1, 100_000), weights=st.sampled_from(list(SERVED)))
def test_more_never_costs_less(batch: int, length: int, weights: str) -> None:
    served = SERVED[weights]
    usual = generation_step(served, batch, length)
    assert generation_step(served, batch + 1, length).seconds >= usual.seconds
    assert generation_step(served, batch, length + 1).seconds >= usual.seconds
    assert generation_step(FASTER[weights], batch, length).read <= usual.read
    assert FASTER[weights].max_sequences(length) >= served.max_sequences(length)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match="known format 'q3'; choose one of bf16, fp8"):
        find_format("q3")
