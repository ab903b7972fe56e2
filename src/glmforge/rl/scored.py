"""Answers become texts for the verifiers, and their verdicts rewards."""

from collections.abc import Callable, Sequence

import numpy as np

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.rl.prompts import Prompt
from glmforge.rl.rewards import Rewards, ScoredText
from glmforge.rl.samples import Answer


class AnswerScorer:
    """Rewards answers; see `source.Score`. What an environment has rewarded stays as it is; of a conversation the terms
    see the last reply.

    Args:
        prompt_of: the prompt with the number that an answer names.
    """

    def __init__(
        self, rewards: Rewards, tokenizer: Tokenizer, prompt_of: Callable[[int], Prompt], max_new_tokens: int
    ) -> None:
        self.rewards, self.tokenizer, self.prompt_of = rewards, tokenizer, prompt_of
        self.max_new_tokens = max_new_tokens

    def __call__(self, answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        last = {one.owner: one for one in answers}
        known = [one for one in last.values() if one.failed or one.reward is not None]
        asked = [one for one in last.values() if not (one.failed or one.reward is not None)]
        verdicts = {one.owner: (one.reward, one.terms, one.failed) for one in [*known, *self._judged(asked, scores)]}
        fields = ("reward", "terms", "failed")
        return [one.changed(**dict(zip(fields, verdicts[one.owner], strict=True))) for one in answers]

    def _judged(self, answers: Sequence[Answer], scores: Sequence[float] | None) -> list[Answer]:
        texts = [
            ScoredText(
                self.prompt_of(one.prompt),
                reply_text(one, self.tokenizer),
                int(one.own_N.sum()),
                one.is_cut,
                self.max_new_tokens,
            )
            for one in answers
        ]
        given = {term.label: scores or [0.0] * len(texts) for term in self.rewards.given_from_outside}
        return [
            one.changed(reward=verdict.total, terms=dict(verdict.terms), failed=verdict.failed)
            for one, verdict in zip(answers, self.rewards.score(texts, given), strict=True)
        ]


def reply_text(one: Answer, tokenizer: Tokenizer, *, whole: bool = False) -> str:
    """What an answer says, without the token that ended it; of a conversation its last reply, or all (`whole`)."""
    start = 0 if whole else np.flatnonzero(~one.own_N).max(initial=-1) + 1
    tokens = one.tokens_N[start:].tolist()
    return tokenizer.decode(tokens[:-1] if one.finished == "stop" else tokens)
