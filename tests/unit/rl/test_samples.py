"""Answers on their way: to bytes and back, into rows, to ranks."""

import io

import numpy as np
import pytest

from glmforge.data.stream.batch import IGNORED_LABEL, ROUTED_EXPERTS
from glmforge.errors import CheckpointError
from glmforge.objectives.policy import ADVANTAGE, OLD_LOGPROB, ROLLOUT_LOGPROB
from glmforge.rl.exchange import deal
from glmforge.rl.packing import batch_of, rows_of, unpacked
from glmforge.rl.samples import ARRAYS, Answer, by_group, from_bytes, to_bytes


def answer(prompt: int, sample: int, num_prompt: int, num_tokens: int, *, experts: bool = True) -> Answer:
    generator = np.random.default_rng([prompt, sample])
    return Answer(
        prompt,
        sample,
        prompt_P=generator.integers(1, 99, num_prompt, dtype=np.int32),
        tokens_N=generator.integers(1, 99, num_tokens, dtype=np.int32),
        logprobs_N=generator.standard_normal(num_tokens).astype(np.float32),
        versions_N=np.zeros(num_tokens, dtype=np.int32),
        finished="stop",
        experts=generator.integers(0, 8, (num_prompt + num_tokens - 1, 2, 3)).astype(np.uint8) if experts else None,
        reward=0.5,
        terms={"mathematics": 1.0},
        advantages_N=np.full(num_tokens, 0.25, dtype=np.float32),
    )


def same(one: Answer, other: Answer) -> bool:
    def value(of: Answer, name: str) -> object:
        return None if (array := getattr(of, name)) is None else (array.dtype, array.tolist())

    names = ("prompt", "sample", "finished", "reward", "terms", "failed")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        value(one, name) == value(other, name) for name in ARRAYS
    )


ANSWERS = [answer(0, 0, 3, 4), answer(0, 1, 3, 6, experts=False), answer(7, 0, 2, 0)]


def test_to_bytes_and_back() -> None:
    found = from_bytes(to_bytes(ANSWERS))
    assert all(map(same, found, ANSWERS))
    assert len(found) == 3
    assert from_bytes(to_bytes([])) == []
    assert list(by_group(reversed(ANSWERS))) == [0, 7]


def hostile() -> dict[str, bytes]:
    file = io.BytesIO()
    np.savez(file, facts=np.array([{"prompt": 1}], dtype=object))
    whole = to_bytes(ANSWERS)
    without = io.BytesIO()
    np.savez(without, facts=np.frombuffer(b'[{"prompt": 1}]', dtype=np.uint8))
    return {
        "nothing": b"",
        "text": b"no archive",
        "pickle": file.getvalue(),
        "cut": whole[:-40],
        "less": without.getvalue(),
    }


@pytest.mark.parametrize("name", hostile())
def test_other_content_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="sampled answers of the checkpoint cannot be read"):
        from_bytes(hostile()[name])


def test_rows_hold_every_answer_once_and_what_is_about_a_token_stands_before_it() -> None:
    answers = [answer(0, 0, 3, 4), answer(0, 1, 3, 6), answer(1, 0, 2, 9), answer(2, 0, 5, 1)]
    rows = rows_of(answers, 17)
    assert sorted(one.key for row in rows for one in row) == [one.key for one in answers]
    assert [sum(one.num_tokens for one in row) for row in rows] == [17, 16]
    batch = batch_of(rows, 17, 4, num_layers=2, num_choices=3)
    assert batch.ids_BS.shape == (4, 17)
    assert OLD_LOGPROB not in batch.per_token
    place = 0
    for one in rows[0]:
        start = place + len(one.prompt_P) - 1
        stop = start + len(one.tokens_N)
        assert batch.labels_BS[0, start:stop].tolist() == one.tokens_N.tolist()
        assert batch.per_token[ROLLOUT_LOGPROB][0, start:stop].tolist() == pytest.approx(one.logprobs_N.tolist())
        assert (batch.labels_BS[0, place:start] == IGNORED_LABEL).all()
        assert not batch.per_token[ADVANTAGE][0, place:start].any()
        experts = batch.per_token[ROUTED_EXPERTS][0, place : place + one.num_tokens]
        assert experts[:-1].tolist() == one.experts.tolist()
        assert (experts[-1] == -1).all()
        place += one.num_tokens
    assert (batch.labels_BS[2:] == IGNORED_LABEL).all()
    found = unpacked(batch.per_token[ROLLOUT_LOGPROB], rows)
    assert all(np.allclose(found[one.key], one.logprobs_N) for one in answers)


def test_shares_are_about_equal() -> None:
    sizes = [9, 1, 8, 2, 7, 3]
    dealt = deal(sizes, 2)
    assert [sum(size for size, share in zip(sizes, dealt, strict=True) if share == s) for s in (0, 1)] == [15, 15]
    assert deal([], 3) == []
