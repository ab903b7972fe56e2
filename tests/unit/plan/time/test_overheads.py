"""What small experts and casts take beside their work, and where that does not apply."""

import pytest

from glmforge.plan.machine.hardware import accelerator_named
from glmforge.plan.machine.measured import MatmulPoint, MeasuredPoints
from glmforge.plan.time.matmul import matmul_seconds
from glmforge.plan.time.overheads import FITTED
from glmforge.plan.work.operations import Matmul

H100 = accelerator_named("h100")
ROWS, OUT, DEPTH = 32768, 1536, 2048


def experts(groups: int, **options) -> float:
    return matmul_seconds(Matmul(ROWS, OUT, DEPTH, groups), options.pop("device", H100), **options)


@pytest.mark.parametrize(("fp8", "each"), [(False, FITTED.expert), (True, FITTED.expert + FITTED.fp8_expert)])
def test_each_expert_adds_its_own_time(fp8: bool, each: float) -> None:
    """Tiles and bytes of weights are the same with it and without."""
    without = FITTED._replace(expert=0.0, fp8_expert=0.0)
    added = experts(2, fp8=fp8) - experts(2, fp8=fp8, overheads=without)
    assert added == pytest.approx(2 * each)


def test_fp8_is_not_taken_where_its_casts_cost_more_than_it_saves() -> None:
    assert experts(2, fp8=True) < experts(2)
    assert experts(128, fp8=True) == experts(128)


def test_a_single_product_has_none_of_it() -> None:
    assert experts(1) == pytest.approx(experts(1, overheads=FITTED._replace(expert=0.0, grouped=0.5)))


def test_measured_grouped_products_have_it_in_them() -> None:
    point = MatmulPoint(ROWS, OUT, DEPTH, 3e14, groups=8)
    device = H100._replace(points=MeasuredPoints("measured", (point,)))
    assert experts(8, device=device) == pytest.approx(Matmul(ROWS, OUT, DEPTH, 8).flops / 3e14)


def test_processor_cores_have_none_of_it() -> None:
    cores = H100._replace(num_processors=None)
    assert experts(64, device=cores) == pytest.approx(
        experts(64, device=cores, overheads=FITTED._replace(expert=0.0, fp8_expert=0.0))
    )
