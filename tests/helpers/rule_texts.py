"""Texts that meet every rule of the prose filters now and then, and datatrove's filters fed with our words."""

import random
from typing import Any

import numpy as np

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.words.split import sentence_spans, words_of

VOCABULARY = [
    *("the", "be", "to", "of", "and", "that", "have", "with", "a", "house", "river", "stands", "near", "small"),
    *("quickly", "don't", "e.g", "naïve", "3.14", "12", "7", "x", "Größe", "javascript", "cookie", "lorem", "weiß"),
    *("中文", "ひらがな", "foo_bar", "well-known", "[1]", "[edit]", "(see)", "{x}", "#", "###", "...", "…", "-", "•"),
    *("“quoted”", "a,b"),
]
ENDS = [".", "!", "?", '"', "...", "…", "", "", ",", "。", ".[12]", " [3]", "”", ". ", "]", ";"]
BREAKS = ["\n"] * 12 + ["\n\n"] * 4 + ["\n\n\n", "\r\n", "\r", "\x0b", "\x85", "\u2028", "\n \n", " \n"]
PHRASES = ["JavaScript", "Lorem Ipsum", "the Privacy Policy", "terms of use", "we use cookies", "Use of Cookies", "{"]


def random_text(seed: int) -> str:
    """Lines of all kinds, some of them again and again; each seed has a character of its own."""
    dice = random.Random(seed)
    weights = [dice.random() ** 3 for _ in VOCABULARY]
    repeats, phrases, bullets = dice.choice([0, 0.02, 0.3]), dice.choice([0, 0.01, 0.1]), dice.choice([0, 0.95])
    longest, ends = dice.choice([4, 12, 40]), dice.choice([ENDS, ENDS[:4], ENDS[4:]])
    lines: list[str] = []
    text = dice.choice(["", "\n", " \n", "  "])
    for _ in range(dice.choice([1, 6, 20, 60])):
        if lines and dice.random() < repeats:
            line = dice.choice(lines[:5])
        else:
            words = dice.choices(VOCABULARY, weights, k=dice.randint(1, longest))
            if dice.random() < phrases:
                words.insert(dice.randint(0, len(words)), dice.choice(PHRASES))
            if dice.random() < 0.002:
                words.append("x" * 1001)
            if dice.random() < repeats:
                words *= 4
            line = ("- " if dice.random() < bullets else "") + " ".join(words) + dice.choice(ends)
        lines.append(line)
        text += line + dice.choice(BREAKS)
    return text if dice.random() < 0.5 else text.strip()


def batch_of(texts: list[str], language: str | None = None) -> DocumentBatch:
    ids = [str(index) for index in range(len(texts))]
    return DocumentBatch.from_columns(ids, texts, "test", languages=[language] * len(texts))


def failed_rules(outcome: Outcome) -> list[set[str]]:
    """The rules that each document fails, without the block's name."""
    rules = [name.partition(": ")[2] for name in outcome.failed]
    table = np.array(list(outcome.failed.values())).T
    return [{rules[i] for i in np.flatnonzero(row)} for row in table]


def datatrove_tokeniser() -> Any:
    """Our splitter in the form in which datatrove's filters take one."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    class OurWords(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return words_of(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [text[a:b] for a, b in sentence_spans(text)]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return list(sentence_spans(text))

    return OurWords()


def assert_same_decisions(block: Block, theirs: Any, reasons: dict[str, str], texts: list[str]) -> None:
    """The block keeps what datatrove's filter keeps, as the same text, and names the reason that it has otherwise.

    Args:
        reasons: datatrove's reason -> our rule.
    """
    from datatrove.data import Document

    outcome = block.process(batch_of(texts))
    seen = set()
    for text, rules, ours in zip(texts, failed_rules(outcome), outcome.batch.texts, strict=True):
        document = Document(text=text, id="")
        verdict = theirs.filter(document)
        if verdict is True:
            assert not rules, repr(text)
            assert ours == document.text
        else:
            assert reasons[verdict[1]] in rules, repr(text)
            assert ours == text
        seen.add(verdict if verdict is True else verdict[1])
    unmet = {True, *reasons} - seen
    assert not unmet, "texts should meet every rule"
