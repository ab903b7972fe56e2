"""Score rows of token ids by transformers; runs in any environment that has it.

    python transformers_nll.py MODEL QUESTIONS.json ANSWERS.json

QUESTIONS: `score`, pairs of ids and of labels, which are the next ids or -100 where none is counted. ANSWERS: `nll`
(sum, nats), `right` (labels that are likeliest), `labels`, `tokens`, `seconds`. Quantised weights are unpacked, as
transformers does on a CPU, and computed with in fp32 (experts in bf16).
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(directory: str, questions: str, answers: str) -> None:
    torch.set_num_threads(1)
    rows = json.loads(Path(questions).read_text())["score"]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    nll, right, labels, tokens, started = 0.0, 0, 0, 0, time.perf_counter()
    for ids, wanted in rows:
        logits, label = model(torch.tensor([ids])).logits[0].float(), torch.tensor(wanted)
        nll += torch.nn.functional.cross_entropy(logits, label, reduction="sum").item()
        right += int((logits.argmax(-1) == label).sum())
        labels += int((label >= 0).sum())
        tokens += len(ids)
    found = {"nll": nll, "right": right, "labels": labels, "tokens": tokens, "seconds": time.perf_counter() - started}
    Path(answers).write_text(json.dumps(found))


main(*sys.argv[1:])
