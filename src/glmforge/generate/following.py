"""The grammars that an engine's requests follow: compiled before a request is queued, asked behind every token, heard
between two steps, closed with the last sample of the request."""

from collections.abc import Iterable, Iterator

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.grammar import Grammars, RequestGrammar, SampleGrammar, wait_for
from glmforge.generate.params import SamplingParams
from glmforge.generate.sequence import Reason, Sequence


class Following:
    """By number, the requests that follow a grammar; none do in an engine without a `tokenizer`."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.grammars = None if tokenizer is None else Grammars(tokenizer)
        self._of: dict[int, RequestGrammar] = {}

    def __len__(self) -> int:
        return len(self._of)

    def compile(self, params: SamplingParams) -> RequestGrammar | None:
        """The grammar that `params` ask for, in any thread. Raises `RequestError`."""
        return self.grammars.compile(params) if params.has_grammar and self.grammars is not None else None

    def add(self, number: int, grammar: RequestGrammar | None) -> None:
        if grammar is not None:
            self._of[number] = grammar

    def sample(self, number: int) -> SampleGrammar | None:
        """For an answer to this request that begins."""
        grammar = self._of.get(number)
        return None if grammar is None else grammar.sample()

    def ask(self, sequences: Iterable[Sequence]) -> None:
        """Have grammars read what their sequences were given, and say what may follow that and the drafts."""
        for sequence in sequences:
            if sequence.grammar is not None and sequence.finished is None:
                sequence.grammar.ask(sequence.sample, sequence.answer, sequence.drafts)

    def hear(self, seconds: float) -> dict[int, str | None]:
        """Wait so many seconds for what was asked; the requests it was made for, and why one of them fails."""
        asked = {number: grammar for number, grammar in self._of.items() if grammar.is_asked}
        if asked:
            wait_for(asked.values(), seconds)
        return {number: grammar.error for number, grammar in asked.items()}

    def close(self, number: int) -> None:
        """The request is over."""
        if (grammar := self._of.pop(number, None)) is not None:
            grammar.close()


def ended(sequences: Iterable[Sequence]) -> Iterator[tuple[Sequence, Reason]]:
    """Of those that their grammars have spoken of, the ones that are complete, or as long as may be."""
    for sequence in sequences:
        if sequence.grammar is None or sequence.is_held or not sequence.answer:
            continue
        if sequence.grammar.ends():
            yield sequence, "stop"
        elif sequence.num_left == 0:
            yield sequence, "length"
