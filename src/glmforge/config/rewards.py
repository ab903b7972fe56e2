"""`rewards`: the terms of which a sample's reward consists, and the limits of the processes that compute them."""

from collections import Counter
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from glmforge.config.judge import JudgeConfig
from glmforge.config.model import Strict, refuse

RewardKind = Literal[
    "verifier", "format", "language", "repetition", "length", "python", "reward_model", "refusal", "judge"
]

_MARGIN_S = 5.0
_OWN_FIELDS = {"function": "python", "options": "python", "soft_tokens": "length", "judge": "judge"}


class RewardTerm(Strict):
    """One term: its weight times its value is added to the reward.

    The value is from 0 to 1, where 1 is good, but of `length` from -1 to 0, and of `python` and `reward_model` what
    they return.
    """

    kind: RewardKind = Field(
        description="verifier: the prompt's own; format: GLM's format, with reasoning if it was asked for; language: "
        "no other writing system than the prompt's; repetition: the reply does not repeat itself; length: 0, falling "
        "to -1 over the last soft_tokens before the longest reply; python: a function; reward_model: its score; "
        "refusal: 1 for refusing harmful prompts and for answering others; judge: a model on a server"
    )
    weight: float = 1.0
    name: str | None = Field(default=None, min_length=1, description="what records call it; None: its kind")
    soft_tokens: PositiveInt | None = Field(default=None, description="of kind length, where it is needed")
    function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="of kind python: 'module:function', called with the prompt's record, the reply and options; it "
        "returns a number",
    )
    options: dict[str, Any] = Field(default={}, description="of kind python: what the function gets")
    judge: JudgeConfig | None = Field(default=None, description="of kind judge, where it is needed")

    @property
    def label(self) -> str:
        return self.name or self.kind

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for field, kind in _OWN_FIELDS.items():
            if getattr(self, field) and self.kind != kind:
                refuse(field, f"only terms of kind '{kind}' have it; remove it from '{self.kind}'")
        for field, kind in (("function", "python"), ("soft_tokens", "length"), ("judge", "judge")):
            if self.kind == kind and not getattr(self, field):
                refuse(field, f"a term of kind '{kind}' needs it")
        return self


class RewardsConfig(Strict):
    """A sample's reward is the weighted sum of its terms. One whose term crashes or takes too long has no reward, and
    is not trained on."""

    terms: list[RewardTerm] = Field(default=[RewardTerm(kind="verifier")], min_length=1, description="what is added up")
    timeout_s: PositiveFloat = Field(
        default=30.0, description="seconds for one term of one sample, from when its process begins it"
    )
    program_s: PositiveFloat = Field(
        default=10.0, description="seconds for all tests of a reply's program; one that takes longer is wrong"
    )
    memory_bytes: PositiveInt = Field(
        default=4 << 30, ge=1 << 28, description="address space of each process that computes terms"
    )
    unsafe_code: bool = Field(
        default=False,
        description="run replies' programs (where there is no bubblewrap) and reasoning-gym's scorers, which execute "
        "what a reply says, without a sandbox, as you",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        twice = [name for name, number in Counter(term.label for term in self.terms).items() if number > 1]
        if twice:
            refuse("terms", f"two terms are called '{twice[0]}'; give one a name of its own")
        if self.timeout_s < self.program_s + _MARGIN_S:
            refuse(
                "timeout_s",
                f"{self.timeout_s:g} must be at least {_MARGIN_S:g} s more than program_s ({self.program_s:g}): else a "
                "slow program would count as a failed verifier",
            )
        return self
