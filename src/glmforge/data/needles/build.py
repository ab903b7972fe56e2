"""Needle tests as tokens: a question's needles put into a text that fills the wanted length.

Test k is a pure function of the settings and k, and made when it is requested: ranks make their own only. Sentences,
question and answers are encoded by themselves and laid end to end, so that it is exact which tokens are answers.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, get_args

import numpy as np

from glmforge.config.needles import NeedleTask, NeedleTestsConfig
from glmforge.data.needles.haystack import Haystack, SentenceEnds
from glmforge.data.needles.questions import Question, make_question
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError


class NeedleKey(NamedTuple):
    """Which test: of which task, with how many tokens, (the first of) its needles how deep, and the how many-th."""

    length: int
    task: NeedleTask
    depth: float
    example: int


class AnswerSpan(NamedTuple):
    """An answer's tokens [start, stop) of the test's, its text, and the depth it counts at."""

    start: int
    stop: int
    text: str
    depth: float


@dataclass(frozen=True)
class NeedleTest:
    """A text with its question, and the reply.

    Attributes:
        ids: of all of it, at most `key.length`.
        num_text: tokens of the text and the question; how the reply begins follows, then the answers.
        num_prompt: tokens before the first answer.
        answers: in the order of the reply.
    """

    key: NeedleKey
    ids: list[int]
    num_text: int
    num_prompt: int
    answers: tuple[AnswerSpan, ...]


class NeedleTests:
    """All tests of `config`, short ones first.

    Raises:
        DataError: a length has no room for a question; also on reading: a stretch of the text has no sentences.
    """

    def __init__(self, config: NeedleTestsConfig, tokenizer: Tokenizer, haystack: Haystack) -> None:
        self.config, self.tokenizer, self.haystack = config, tokenizer, haystack
        self._ends = SentenceEnds(tokenizer)
        lengths, examples = sorted(config.lengths), range(config.num_examples)
        self.keys = [NeedleKey(*each) for each in product(lengths, config.tasks, config.depths, examples)]
        for key in self.keys:
            if key.length < 2 * lengths[0]:
                self._room(key, self._question(key)[0])
        _ = self[0]  # finds out text without sentences

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> NeedleTest:
        key = self.keys[index]
        question, rng = self._question(key)
        text, places = self._ends.cut(self.haystack, self._room(key, question), rng)
        ids = self._encode(question.intro)
        begin = 0
        for needle in question.needles:
            end = int(places[np.abs(places - needle.place * len(text)).argmin()])
            ids += [*text[begin:end].tolist(), *self._encode(f" {needle.sentence}")]
            begin = end
        ids += [*text[begin:].tolist(), *self._encode(f"\n\n{question.question}")]
        num_text = len(ids)
        ids += self._encode(f" {question.lead}")
        num_prompt = len(ids)
        answers = []
        for number, answer in enumerate(question.answers):
            ids += self._encode(",") if number else []
            tokens = self._encode(f" {answer.text}")
            answers.append(AnswerSpan(len(ids), len(ids) + len(tokens), answer.text, answer.depth))
            ids += tokens
        return NeedleTest(key, ids + self._encode("."), num_text, num_prompt, tuple(answers))

    def _question(self, key: NeedleKey) -> tuple[Question, np.random.Generator]:
        """With the generator that goes on to draw the text."""
        task, depth = get_args(NeedleTask).index(key.task), round(key.depth * 1e6)
        rng = np.random.default_rng([self.config.seed, key.length, task, depth, key.example])
        return make_question(key.task, key.depth, self.config, rng), rng

    def _room(self, key: NeedleKey, question: Question) -> int:
        """Tokens that are left for the text."""
        parts = [question.intro, f"\n\n{question.question}", f" {question.lead}", "."]
        parts += [f" {needle.sentence}" for needle in question.needles]
        parts += [f" {answer.text}" for answer in question.answers]
        needed = sum(len(self._encode(part)) for part in parts)
        needed += len(self._encode(",")) * (len(question.answers) - 1)
        if needed > key.length:
            raise DataError(
                f"lengths: {key.length:,} tokens are too few for the question of task '{key.task}', which needs "
                f"{needed:,} without any text; use a longer length"
            )
        return key.length - needed

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)
