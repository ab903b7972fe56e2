"""Sampled answers, as they go from the engine to the trainer: token ids, never text that would be encoded again.

They are written as npz without pickles, in checkpoints and between ranks.

Shapes: P tokens of the prompt, N of the answer, M MoE layers, K experts of a token.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.errors import CheckpointError

ARRAYS = (
    "prompt_P",
    "tokens_N",
    "logprobs_N",
    "versions_N",
    "experts",
    "advantages_N",
    "old_N",
    "reference_N",
    "values_N",
    "returns_N",
    "trained_N",
)


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer to a prompt.

    Attributes:
        prompt: the prompt's number in the order of the run, which is the group's.
        sample: its number in the group.
        prompt_P, tokens_N: int32 token ids; the last one is the end token unless the answer was cut.
        logprobs_N: float32, as the engine sampled: under the temperature.
        versions_N: int32, how often the weights had been updated when each token was sampled.
        finished: "stop" or "length"; "" while it is unfinished.
        experts: uint8 or int16 [P + N - 1, M, K], what each token but the last was routed to; None unless recorded.
        reward: None until it is known, and where a verifier failed (`failed` says why).
        terms: what the reward consists of.
        advantages_N, old_N, reference_N, values_N, returns_N: float32, once they are computed.
        begun: how often the weights had been updated when the group was asked for.
        trained_N: bool, False for tokens that the policy did not write (what an environment said); None: it wrote all.
        episode: of a further part of a sample's conversation (one whose beginning was rewritten) the sample, with
            which it shares reward and advantage; None otherwise.
    """

    prompt: int
    sample: int
    prompt_P: NDArray[np.int32]
    tokens_N: NDArray[np.int32]
    logprobs_N: NDArray[np.float32]
    versions_N: NDArray[np.int32]
    finished: str = ""
    experts: NDArray[Any] | None = None
    reward: float | None = None
    terms: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    advantages_N: NDArray[np.float32] | None = None
    old_N: NDArray[np.float32] | None = None
    reference_N: NDArray[np.float32] | None = None
    values_N: NDArray[np.float32] | None = None
    returns_N: NDArray[np.float32] | None = None
    begun: int = 0
    trained_N: NDArray[np.bool_] | None = None
    episode: int | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.prompt, self.sample

    @property
    def owner(self) -> tuple[int, int]:
        """The key of the sample whose reward it has."""
        return self.prompt, self.sample if self.episode is None else self.episode

    @property
    def own_N(self) -> NDArray[np.bool_]:
        """Which tokens the policy wrote."""
        return np.ones(len(self.tokens_N), dtype=bool) if self.trained_N is None else self.trained_N

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer."""
        return len(self.prompt_P) + len(self.tokens_N)

    @property
    def is_cut(self) -> bool:
        return self.finished == "length"

    def changed(self, **fields: Any) -> "Answer":
        return replace(self, **fields)


def to_bytes(answers: Sequence[Answer]) -> bytes:
    """The answers as one npz file."""
    facts: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for place, one in enumerate(answers):
        given = {name: getattr(one, name) for name in ARRAYS if getattr(one, name) is not None}
        arrays |= {f"{place}.{name}": array for name, array in given.items()}
        names = ("prompt", "sample", "begun", "finished", "reward", "terms", "failed", "episode")
        facts.append({name: getattr(one, name) for name in names})
    file = io.BytesIO()
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def from_bytes(content: bytes) -> list[Answer]:
    """The inverse of `to_bytes`. Raises `CheckpointError`: the content is something else."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            facts = json.loads(stored["facts"].tobytes())
            return [
                Answer(
                    **one,
                    **{name: stored[f"{place}.{name}"] for name in ARRAYS if f"{place}.{name}" in stored.files},
                )
                for place, one in enumerate(facts)
            ]
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"sampled answers of the checkpoint cannot be read ({error})") from error


def by_group(answers: Iterable[Answer]) -> dict[int, list[Answer]]:
    """Prompt -> its answers, both in ascending order."""
    groups: dict[int, list[Answer]] = {}
    for one in sorted(answers, key=lambda one: one.key):
        groups.setdefault(one.prompt, []).append(one)
    return groups
