"""Answers become texts for the verifiers, and their verdicts rewards."""

from collections.abc import Callable, Sequence

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.rl.prompts import Prompt
from glmforge.rl.rewards import Rewards, ScoredText
from glmforge.rl.samples import Answer


class AnswerScorer:
    """Rewards answers; see `source.Score`.

    Args:
        prompt_of: the prompt with the number that an answer names.
    """

    def __init__(
        self, rewards: Rewards, tokenizer: Tokenizer, prompt_of: Callable[[int], Prompt], max_new_tokens: int
    ) -> None:
        self.rewards, self.tokenizer, self.prompt_of = rewards, tokenizer, prompt_of
        self.max_new_tokens = max_new_tokens

    def __call__(self, answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        texts = [
            ScoredText(
                self.prompt_of(one.prompt),
                reply_text(one, self.tokenizer),
                len(one.tokens_N),
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


def reply_text(one: Answer, tokenizer: Tokenizer) -> str:
    """What an answer says, without the token that ended it."""
    tokens = one.tokens_N.tolist()
    return tokenizer.decode(tokens[:-1] if one.finished == "stop" else tokens)
