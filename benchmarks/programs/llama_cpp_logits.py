"""Log-probabilities, greedy tokens and tokens of text by llama.cpp, for comparison; runs where llama-cpp-python is.

    python llama_cpp_logits.py MODEL.gguf QUESTIONS.json ANSWERS.npz

QUESTIONS: `rows` (lists of ids to score), `prompts` (lists of ids to continue), `max_new_tokens`, `stop` (ids), `texts`
(to tokenise). ANSWERS: `logits_<i>` [S, V] fp32, `greedy_<i>`, `tokens_<i>`. The cache is fp32: with the usual fp16 the
logits differ in the first decimal.
"""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def main(model: str, questions: str, answers: str) -> None:
    asked = json.loads(Path(questions).read_text())
    longest = max([len(row) for row in asked["rows"]] + [len(p) + asked["max_new_tokens"] for p in asked["prompts"]])
    llama = llama_cpp.Llama(
        model,
        n_ctx=longest + 8,
        n_batch=512,
        logits_all=True,
        type_k=0,
        type_v=0,
        n_threads=1,
        verbose=False,
        flash_attn=False,
    )
    found = {}
    for number, row in enumerate(asked["rows"]):
        llama.reset()
        llama.eval(row)
        found[f"logits_{number}"] = llama.scores[: len(row)].copy()
    for number, prompt in enumerate(asked["prompts"]):
        llama.reset()
        llama.eval(prompt)
        new: list[int] = []
        while len(new) < asked["max_new_tokens"]:
            new.append(int(llama.scores[llama.n_tokens - 1].argmax()))
            if new[-1] in asked["stop"]:
                break
            llama.eval(new[-1:])
        found[f"greedy_{number}"] = np.array(new)
    for number, text in enumerate(asked["texts"]):
        found[f"tokens_{number}"] = np.array(llama.tokenize(text.encode(), add_bos=True, special=True))
    np.savez(answers, **found)


main(*sys.argv[1:])
