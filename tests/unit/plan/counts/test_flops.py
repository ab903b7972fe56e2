import pytest

from glmforge.config import load_model_config
from glmforge.plan.counts.flops import mean_attended_length, train_flops_per_token

LENGTHS = (4096, 8192, 32768, 131072)


@pytest.mark.parametrize(
    ("model", "with_mtp", "gigaflops"),
    [
        ("glm46_355b", False, (224.9, 252.7, 419.4, 1086)),
        ("glm46_355b", True, (232.3, 260.4, 428.9, 1103)),
        ("glm45_air_106b", False, (90.7, 104.6, 188.0, 521)),
        ("glm45_air_106b", True, (96.5, 110.7, 195.9, 537)),
    ],
)
def test_published_figures(model: str, with_mtp: bool, gigaflops: tuple[float, ...]) -> None:
    config = load_model_config(model)
    for length, expected in zip(LENGTHS, gigaflops, strict=True):
        # One unit of the last digit that the published table prints.
        unit = 1 if isinstance(expected, int) else 0.1
        assert train_flops_per_token(config, length, with_mtp) / 1e9 == pytest.approx(expected, abs=unit)


def test_an_exact_figure() -> None:
    """The formula for GLM-4.5-Air at 32K, written out with the published counts."""
    expected = 6 * (12_181_569_536 + 620_756_992) + 6 * 32768 * 12288 * 46
    assert train_flops_per_token(load_model_config("glm45_air_106b"), 32768, with_mtp=False) == expected


@pytest.mark.parametrize(
    ("lengths", "mean"), [([7], 7), ([4, 4, 4], 4), ([1, 3], 2.5), (iter([2, 0, 6]), 5), ([1] * 10, 1)]
)
def test_mean_attended_length(lengths: list[int], mean: float) -> None:
    assert mean_attended_length(lengths) == mean


def test_mean_of_no_documents_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        mean_attended_length([])
