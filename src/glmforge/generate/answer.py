"""What an engine gives: updates while an answer is made, and whole answers."""

from dataclasses import dataclass, field

from torch import Tensor

from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.sequence import NO_DRAFTS, DraftCounts, Reason, Sequence


@dataclass(frozen=True, eq=False)
class Details:
    """Of a sample that has ended: log-probabilities of the prompt's tokens from the second on, and experts int16
    [tokens of prompt and answer but the last, MoE layers, experts of a token]; empty and None if not requested."""

    prompt_logprobs: list[TokenLogprob]
    experts_TMK: Tensor | None

    @classmethod
    def of(cls, sequence: Sequence) -> "Details | None":
        """None if the request asks for none of them."""
        params = sequence.request.params
        if not (params.prompt_logprobs or params.experts):
            return None
        return cls(sequence.prompt_logprobs, sequence.known_experts)


@dataclass(frozen=True)
class Update:
    """A token that a step gave to a sample of a request, or its end.

    Attributes:
        token: None where an answer ends without another one: its grammar is complete or at its longest behind the last
            one, or its request has failed.
        text: what can be said of the answer's text since the last update, if the engine has a tokenizer.
        logprob: of the token, if the request asks for it.
        drafts: counts those of the sample so far.
        details: what else it asks for, with the end.
        error: one line that says why it has failed, if `finished` is "error".
        stop: the stop string or token that ended it; None if another reason did, such as a grammar that is complete.
        num_cached: tokens of the prompt that lay in the cache when its request began.
        version: of the weights that the token was sampled with; see `Engine.weights_changed`.
    """

    request: int
    sample: int
    token: int | None
    finished: Reason | None
    text: str = ""
    logprob: TokenLogprob | None = None
    drafts: DraftCounts = NO_DRAFTS
    details: Details | None = None
    error: str | None = None
    stop: int | str | None = None
    num_cached: int = 0
    version: int | None = None


@dataclass
class Sample:
    """An answer: its tokens, its text if the engine has a tokenizer, why it ended, what the request asked for, and how
    much of it was drafted. Where `finished` is "error", `error` says why, and the tokens are those until then. What was
    cached does not make it another answer. `versions` has one of the weights for each token, where they have any."""

    tokens: list[int] = field(default_factory=list)
    finished: Reason | None = None
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drafts: DraftCounts = NO_DRAFTS
    details: Details | None = None
    error: str | None = None
    stop: int | str | None = None
    num_cached: int = field(default=0, compare=False)
    versions: list[int] = field(default_factory=list)

    def add(self, update: Update) -> None:
        """Take up what an update of this sample says."""
        if update.token is not None:
            self.tokens.append(update.token)
            if update.version is not None:
                self.versions.append(update.version)
        if update.logprob is not None:
            self.logprobs.append(update.logprob)
        self.text += update.text
        self.finished, self.drafts, self.details = update.finished, update.drafts, update.details
        self.error, self.stop, self.num_cached = update.error, update.stop, update.num_cached
