"""Log-probabilities, greedy tokens and tokens of text by llama.cpp, for comparison; runs where llama-cpp-python is.

    python llama_cpp_logits.py MODEL.gguf QUESTIONS.json ANSWERS.npz

QUESTIONS, each optional but `max_new_tokens`: `rows` (lists of ids, whose logits are wanted), `score` (pairs of ids and
of labels, the next ids or -100 where none is counted), `prompts` (lists of ids to continue), `max_new_tokens` and
`stop` (ids) for them, `texts` (to tokenise). ANSWERS: `logits_<i>` [S, V] fp32, `score` (nll in nats, labels that are
likeliest, labels, seconds, over all rows), `greedy_<i>`, `tokens_<i>`. The cache is fp32: with the usual fp16 the
logits differ in the first decimal.
"""

import json
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np


def main(model: str, questions: str, answers: str) -> None:
    asked = json.loads(Path(questions).read_text())
    rows, prompts, score = (asked.get(name, []) for name in ("rows", "prompts", "score"))
    lengths = [len(row) for row in [*rows, *(ids for ids, _ in score)]] + [
        len(prompt) + asked["max_new_tokens"] for prompt in prompts
    ]
    longest = max(lengths)
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
    for number, row in enumerate(rows):
        llama.reset()
        llama.eval(row)
        found[f"logits_{number}"] = llama.scores[: len(row)].copy()
    sums, started = np.zeros(3), time.perf_counter()
    for ids, wanted in score:
        llama.reset()
        llama.eval(ids)
        counted = np.array(wanted) >= 0
        logits, labels = llama.scores[: len(ids)][counted].astype(np.float64), np.array(wanted)[counted]
        top = logits.max(axis=1)
        nll = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(labels)), labels]
        sums += nll.sum(), (logits.argmax(axis=1) == labels).sum(), len(labels)
    found["score"] = np.array([*sums, time.perf_counter() - started])
    for number, prompt in enumerate(prompts):
        llama.reset()
        llama.eval(prompt)
        new: list[int] = []
        while len(new) < asked["max_new_tokens"]:
            new.append(int(llama.scores[llama.n_tokens - 1].argmax()))
            if new[-1] in asked["stop"]:
                break
            llama.eval(new[-1:])
        found[f"greedy_{number}"] = np.array(new)
    for number, text in enumerate(asked.get("texts", [])):
        found[f"tokens_{number}"] = np.array(llama.tokenize(text.encode(), add_bos=True, special=True))
    np.savez(answers, **found)


main(*sys.argv[1:])
