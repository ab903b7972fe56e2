"""Settings that cannot be are refused in one line that names the setting."""

import math

import pytest

from glmforge.generate.params import RequestError, SamplingParams


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens: -1 is not 0 or more"),
        ({"max_new_tokens": 0, "num_samples": 2}, "max_new_tokens: 0 scores the prompt alone"),
        ({"max_new_tokens": 2.5}, "max_new_tokens: 2.5 is not a whole number"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: 9 is more than max_new_tokens, 8"),
        ({"temperature": -0.1}, "temperature: -0.1 is not 0"),
        ({"temperature": math.nan}, "temperature: nan is not 0"),
        ({"top_p": 0}, "top_p: 0 is not above 0"),
        ({"top_k": -1}, "top_k: -1 is not 0"),
        ({"min_p": 2}, "min_p: 2 is not between 0"),
        ({"temperature": 10**400}, r"temperature: 1000.*0 is not 0 \(greedy\), or between 1e-05 and 1e\+09"),
        ({"temperature": -(10**5000)}, "temperature: a number of thousands of digits is not 0"),
        ({"top_k": 2**31}, "top_k: 2147483648 is not 0"),
        ({"repetition_penalty": 1e-30}, "repetition_penalty: 1e-30 is not between 0.001 and 1000"),
        ({"frequency_penalty": math.inf}, "frequency_penalty: inf is not a finite number"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3: nan is not a finite number"),
        ({"logit_bias": {3: -(10**310)}}, "logit_bias of token 3: -1000.*0 is not a finite number"),
        ({"logit_bias": {2**70: 1.0}}, "logit_bias: 1180591620717411303424 is not a token id"),
        ({"logit_bias": dict.fromkeys(range(5000), 1.0)}, "logit_bias: names 5,000 tokens; at most 4,096 are allowed"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias: '3' is not a whole number"),
        ({"banned_tokens": [-1]}, "banned_tokens: -1 is not a token id"),
        ({"stop_ids": 7}, "stop_ids: 7 is not a list of token ids"),
        ({"stop": "\n"}, r"stop: '\\n' is not a list of strings"),
        ({"stop": [""]}, "stop: contains an empty string; remove it"),
        ({"stop": ["x"] * 65}, "stop: give at most 64 strings of at most 1,024 characters"),
        ({"seed": 2**63}, "seed: 9223372036854775808 is not between"),
        ({"num_samples": 10**6}, "num_samples: 1000000 is not between 1 and 4,096"),
        ({"experts": 1}, "experts: 1 is not a yes or no"),
        ({"json_schema": 3}, "json_schema: 3 is not a json schema"),
        ({"grammar": "start: " + "x" * 2**22}, "grammar: 4,194,311 characters are more than 4,194,304; shorten it"),
        ({"grammar": 'start: "a"', "json_schema": {}}, "pass one of them"),
        ({"grammar": 'start: "a"', "banned_tokens": [1]}, "could leave no token"),
    ],
    ids=lambda value: repr(value)[:60] if not isinstance(value, dict) else "-".join(value),
)
def test_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(**settings)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop_ids": [10]}, "token 10 is outside the vocabulary of 10"),
        ({"logit_bias": {12: 1.0}}, "token 12 is outside the vocabulary of 10"),
        ({"vocab_size": 11}, "vocab_size: 11 is more than the model's 10"),
        (
            {"first_tokens": [1, 2], "banned_tokens": [1, 2]},
            "first_tokens: all are banned, beyond vocab_size, or end the",
        ),
        ({"first_tokens": [7], "vocab_size": 7}, "first_tokens: all are banned, beyond vocab_size, or end the"),
        (
            {"first_tokens": [7], "stop_ids": [7], "min_new_tokens": 2},
            "first_tokens: all are banned, beyond vocab_size, or end the",
        ),
        ({"banned_tokens": list(range(5)), "vocab_size": 5}, "all 5 tokens are banned"),
    ],
    ids=str,
)
def test_refused_for_a_vocabulary(settings: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        SamplingParams(**settings).check_vocabulary(10)
    SamplingParams(first_tokens=[7], stop_ids=[7], min_new_tokens=1).check_vocabulary(10)
