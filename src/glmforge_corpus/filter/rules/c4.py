"""C4's rules (Raffel et al. 2020, arXiv:1910.10683, section 2.2): lines that are no sentences go, then poor pages.

Meaning and defaults are those of datatrove's filter: lines are kept that end in terminal punctuation, have enough
words and no words of over a thousand characters, and speak neither of Javascript nor of cookies and terms of use;
citation marks are cut out; a document goes if a kept line says "lorem ipsum" or has a curly bracket, or if too few
sentences are left. The list of bad words is the toxicity block's affair.

The published rules are for English. For documents identified as another language:

- Terminal punctuation is that of all scripts (Sentence_Terminal) and closing quotation marks of all styles.
- In scripts without spaces two characters are taken for a word when a line's words are counted.
- Thai, Lao, Khmer and Burmese, whose lines need not end in a sign, are judged by mC4's rule instead of those of
  punctuation and sentences: three lines of 200 characters (Xue et al. 2021, arXiv:2010.11934).
- Chinese keeps all its lines but those of phrases, and needs no number of sentences: answers to choose from, verses and
  short replies end in no full stop, and five sentences are a long text. `chinese_lines: true` applies the rules.

The phrases remain English; `boilerplate` has other languages' ones.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Outcome
from glmforge_corpus.filter.rules import c4_kernel as kernels
from glmforge_corpus.filter.rules.language_limits import UNTERMINATED_LANGUAGES, WHOLE_LINE_LANGUAGES
from glmforge_corpus.filter.rules.prose import ENGLISH, PROGRAMS, ProseBlock
from glmforge_corpus.words.characters import character_table

_LINE_COUNTS = {
    "lines without terminal punctuation": kernels.NO_TERMINAL,
    "lines of too few words": kernels.FEW_WORDS,
    "lines with a word too long": kernels.LONG_WORD,
    "lines about javascript": kernels.JAVASCRIPT,
    "lines about policies": kernels.POLICY,
    "citation marks cut out": kernels.CITATIONS,
}


class C4(ProseBlock):
    """Keeps the lines that are sentences, and the documents that have enough of them."""

    kind: ClassVar[str] = "c4"
    terminal_punctuation: bool = Field(
        default=True, description="remove lines that do not end with sentence punctuation"
    )
    min_words_per_line: int = Field(default=3, ge=0)
    max_word_length: int = Field(
        default=1000, ge=0, description="characters; remove lines with a longer word; 0: no limit"
    )
    javascript: bool = Field(default=True, description="remove lines that contain the word")
    policy: bool = Field(default=True, description="remove lines about cookies, privacy and terms of use")
    remove_citations: bool = Field(default=True, description="cut out [1], [edit], [citation needed]")
    lorem_ipsum: bool = Field(default=True, description="remove documents that contain the phrase")
    curly_bracket: bool = Field(default=True, description="remove documents with { in a line that is kept")
    min_sentences: int = Field(default=5, ge=0, description="minimum number in the remaining text")
    chinese_lines: bool = Field(
        default=False, description="apply the rules on lines, sentences and brackets to Chinese"
    )

    def process(self, batch: DocumentBatch) -> Outcome:
        options = np.zeros(kernels.NUM_OPTIONS, np.int64)
        options[kernels.TERMINAL_PUNCTUATION] = self.terminal_punctuation
        options[kernels.MIN_WORDS] = self.min_words_per_line
        options[kernels.MAX_WORD_LENGTH] = self.max_word_length
        options[kernels.REMOVE_CITATIONS] = self.remove_citations
        options[kernels.MIN_SENTENCES] = self.min_sentences
        rules = {kernels.JAVASCRIPT_RULE: self.javascript, kernels.POLICY_RULE: self.policy}
        rules |= {kernels.LOREM_IPSUM_RULE: self.lorem_ipsum, kernels.CURLY_BRACKET_RULE: self.curly_bracket}
        options[kernels.PHRASES] = sum(rule for rule, wanted in rules.items() if wanted)
        modes = self._modes(batch)
        text, offsets, counts, failures = kernels.keep_sentences(
            batch.text_bytes, batch.text_offsets, modes, options, character_table()
        )
        failed = {
            "lorem ipsum": failures & kernels.LOREM_IPSUM_RULE > 0,
            "curly bracket": failures & kernels.CURLY_BRACKET_RULE > 0,
            "too few sentences": failures & kernels.FEW_SENTENCES > 0,
            "too few long lines": failures & kernels.FEW_LONG_LINES > 0,
            "nothing left": failures & kernels.NOTHING_LEFT > 0,
        }
        outcome = self.outcome(batch, failed)
        totals = {f"{self.kind}: {name}": int(counts[:, column].sum()) for name, column in _LINE_COUNTS.items()}
        return Outcome(batch.with_text_buffers(text, offsets), outcome.failed, totals)

    def _modes(self, batch: DocumentBatch) -> NDArray[np.int64]:
        languages = self.languages(batch)

        def mode(language: str) -> int:
            if language in UNTERMINATED_LANGUAGES:
                return kernels.UNTERMINATED
            if language in WHOLE_LINE_LANGUAGES and not self.chinese_lines:
                return kernels.WHOLE
            return {PROGRAMS: kernels.UNTOUCHED, ENGLISH: kernels.PUBLISHED}.get(language, kernels.ANY_SCRIPT)

        return languages.pick(mode).astype(np.int64)
