"""Which replies to keep: rejection sampling without a model.

A reply is looked at for, in this order, and rejected for the first that it fails:

    refused          the server would not answer the request
    truncated        the server stopped it at the limit of tokens
    empty            no text
    format           `<think>` opened and not closed, closed twice, or nothing after it; control tokens of a template
    no answer        no final answer (`answers.final_answer`)
    repetition       the same words again and again
    language mix     written in another script than the question, in good part
    wrong answer     the answer is known, and this is another
    no agreement     the answer is not known, and no answer has enough of the votes
    minority         the answer is not known, and this is not the one that has them
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from glmforge.config.model import Strict
from glmforge.verify.answers import as_number, final_answer, normalised
from glmforge.verify.reward import reward

REASONS = (
    "refused", "truncated", "empty", "format", "no answer", "repetition", "language mix", "wrong answer",
    "no agreement", "minority",
)  # fmt: skip

_CONTROL = re.compile(r"<\|(?:user|assistant|system|observation|endoftext|im_start|im_end)\|>|\[gMASK\]")
_UNITS = re.compile(r"[\u3400-\u9fff]|[^\W_]+", re.UNICODE)
_CJK = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[A-Za-z]")
_FORMULA = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|```.*?```|`[^`]*`|\\[a-zA-Z]+", re.DOTALL)


class Judgement(Strict):
    """When a reply is accepted."""

    require_thinking: bool = Field(default=False, description="reject replies without <think>...</think>")
    repeated_run: int = Field(
        default=12,
        ge=4,
        description="length of a repeated passage that counts as a loop, in words or Chinese characters",
    )
    max_repeats: int = Field(default=4, ge=2, description="how often such a passage may occur without overlap")
    max_foreign: float = Field(
        default=0.1, ge=0, le=1, description="maximum share of letters in a script that the question is not written in"
    )
    agreement: float = Field(
        default=0.5, ge=0, lt=1, description="where no answer is known: share of the votes that an answer must exceed"
    )
    min_votes: int = Field(default=2, ge=1, description="minimum number of votes for an answer")


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's words.

    Attributes:
        reasoning, content: what stands in the thinking, and after it.
        finish: why the server stopped.
        well_formed: whether thinking was opened and closed as it should be.
    """

    reasoning: str
    content: str
    finish: str
    well_formed: bool = True


def read_reply(completion: Mapping[str, Any]) -> Reply:
    """The first choice, whether the server splits off the reasoning or leaves it in the text."""
    choice = completion["choices"][0]
    message, finish = choice["message"], str(choice.get("finish_reason") or "")
    content = _text(message.get("content"))
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    if reasoning:
        clean = "<think>" not in content and "</think>" not in content
        return Reply(reasoning.strip(), content.strip(), finish, clean)
    before, closed, after = content.partition("</think>")
    if not closed:
        return Reply("", content.strip(), finish, "<think>" not in content)
    # a chat template may have opened the thinking already
    head, opened, thought = before.rpartition("<think>")
    well = not head.strip() and "<think>" not in head and "<think>" not in after and "</think>" not in after
    return Reply((thought if opened else before).strip(), after.strip(), finish, well)


def _text(value: object) -> str:
    """A string that UTF-8 can hold, half surrogate pairs replaced; "" for anything else."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def reject_reason(reply: Reply, question: str, rules: Judgement) -> str | None:
    """Why a reply is not to be kept regardless of its answer, or None."""
    text = f"{reply.reasoning}\n{reply.content}"
    if reply.finish == "length":
        return "truncated"
    if not text.strip():
        return "empty"
    if (
        not reply.well_formed
        or not reply.content
        or _CONTROL.search(text)
        or (rules.require_thinking and not reply.reasoning)
    ):
        return "format"
    if final_answer(reply.content) is None:
        return "no answer"
    if is_repetitive(text, rules.repeated_run, rules.max_repeats):
        return "repetition"
    if foreign_share(question, text) > rules.max_foreign:
        return "language mix"
    return None


def is_repetitive(text: str, run: int, max_repeats: int) -> bool:
    """Whether a run of `run` words occurs more than `max_repeats` times without overlapping itself.

    Runs of one and the same word (a row of zeros in a table, say) count like any other.
    """
    words = [word.casefold() for word in _UNITS.findall(text)]
    last: dict[tuple[str, ...], int] = {}
    counts = Counter[tuple[str, ...]]()
    for start in range(len(words) - run + 1):
        gram = tuple(words[start : start + run])
        if start >= last.get(gram, start - run) + run:
            last[gram] = start
            counts[gram] += 1
            if counts[gram] > max_repeats:
                return True
    return False


def foreign_share(question: str, text: str) -> float:
    """Share of the text's letters that are Chinese where the question has none, or of Latin ones where it is Chinese.

    Formulas and code are omitted. A Chinese character weighs as much as four Latin letters: about a word each.
    """
    asked_cjk, asked_latin = _script(question)
    cjk, latin = _script(text)
    if asked_cjk == asked_latin == 0 or cjk + latin == 0:
        return 0.0
    if asked_cjk == 0:
        return cjk / (cjk + latin)
    # technical terms in Latin letters are at home in Chinese text: only where they prevail it is another language
    return latin / (cjk + latin) if asked_cjk > asked_latin and latin > cjk else 0.0


def _script(text: str) -> tuple[int, int]:
    plain = _FORMULA.sub(" ", text)
    return 4 * len(_CJK.findall(plain)), len(_LATIN.findall(plain))


def judge(
    replies: Sequence[Reply | None], question: str, verifier: Mapping[str, Any] | None, rules: Judgement
) -> tuple[list[str | None], str | None]:
    """Judge all replies to one question.

    Args:
        replies: None where the server refused the request.
        verifier: `kind` and `answer` where the answer is known.

    Returns:
        (per reply the reason of its rejection or None, the answer: the known one or that of the vote).
    """
    reasons = [reject_reason(r, question, rules) if r is not None else "refused" for r in replies]
    open_ones = [i for i, reason in enumerate(reasons) if reason is None]
    if verifier is not None:
        for i in open_ones:
            if not reward(verifier, _reply_at(replies, i).content):
                reasons[i] = "wrong answer"
        return reasons, str(verifier["answer"])
    answers = {i: str(final_answer(_reply_at(replies, i).content)) for i in open_ones}
    winners, share = _vote(answers)
    if len(winners) < rules.min_votes or share <= rules.agreement:
        for i in open_ones:
            reasons[i] = "no agreement"
        return reasons, None
    for i in open_ones:
        if i not in winners:
            reasons[i] = "minority"
    return reasons, answers[min(winners)]


def _reply_at(replies: Sequence[Reply | None], index: int) -> Reply:
    reply = replies[index]
    assert reply is not None
    return reply


def _vote(answers: Mapping[int, str]) -> tuple[set[int], float]:
    """(who gave the most frequent answer, its share); equal as numbers or, failing that, as text."""
    groups: dict[object, set[int]] = {}
    for index, answer in answers.items():
        number = as_number(answer)
        groups.setdefault(normalised(answer) if number is None else number, set()).add(index)
    if not groups:
        return set(), 0.0
    best = max(groups.values(), key=lambda members: (len(members), -min(members)))
    return best, len(best) / len(answers)


def guess_kind(answer: str) -> str:
    """How to compare an answer of which nothing is said: as a number, a choice's letter, or text."""
    if as_number(answer) is not None:
        return "number"
    return "choice" if re.fullmatch(r"\(?[A-J]\)?", answer.strip()) else "text"
