import pytest
from pydantic import ValidationError

from glmforge.config.fault_tolerance import FaultToleranceConfig


@pytest.mark.parametrize(
    ("resume", "step"), [("auto", None), ("never", None), ("step-900", 900), ("step-00000900", 900)]
)
def test_what_to_resume_from(resume: str, step: int | None) -> None:
    assert FaultToleranceConfig(resume=resume).resume_step == step


@pytest.mark.parametrize("resume", ["always", "step-", "step--1", "step-9 ", "900"])
def test_neither_a_word_nor_a_step(resume: str) -> None:
    with pytest.raises(ValidationError, match="invalid value; use 'auto', 'never' or a step such as 'step-900'"):
        FaultToleranceConfig(resume=resume)
