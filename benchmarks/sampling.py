"""How long choosing a token takes, with GLM's vocabulary and a batch of 64, setting by setting.

    python benchmarks/sampling.py

Rows of logits look like those of a trained model: a few hundred likely tokens above a wide floor; "flat" rows have no
likely ones, so that top-p needs most of the vocabulary. Settings take turns; what is told is the median over the
rounds of the CPU time on one thread, which other programs of the machine disturb least. The baseline are the same steps
in their usual form: softmax, `torch.sort` for top-k and top-p, `torch.multinomial`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from record import write_result
from torch import Tensor

from glmforge.generate.params import SamplingParams
from glmforge.generate.sampler import choose_tokens
from glmforge.generate.sequence import Place, Request, Sequence

CODE = ("src/glmforge/generate/sampler.py", "src/glmforge/generate/filters.py", "src/glmforge/generate/rules.py")
NUM_ROWS, VOCAB_SIZE, NUM_LIKELY = 64, 151_552, 300
PROMPT, ANSWER = tuple(range(1000)), list(range(500, 1000))
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "min-p": {"min_p": 0.05},
    "top-k": {"top_k": 50},
    "top-p": {"top_p": 0.95},
    "top-p, flat": {"top_p": 0.95},
    "top-k and top-p": {"top_k": 50, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "log-probabilities": {"logprobs": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    flat_LV = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=generator)
    trained_LV = 2 * flat_LV
    trained_LV[:, :NUM_LIKELY] += 14
    trained_LV = trained_LV[:, torch.randperm(VOCAB_SIZE, generator=generator)]
    calls: dict[str, tuple[Callable[[Tensor], object], Tensor]] = {
        name: (_choose(settings), flat_LV if "flat" in name else trained_LV) for name, settings in SETTINGS.items()
    }
    calls |= {"sort and multinomial": (_sort_and_multinomial, trained_LV)}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(arguments.rounds):
        for name, (call, logits_LV) in calls.items():
            fresh_LV = logits_LV.clone()
            start = time.process_time()
            call(fresh_LV)
            seconds[name].append(time.process_time() - start)
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    for name, milliseconds in medians.items():
        print(f"{name:25} {milliseconds:8.1f} ms")
    content = {"rows": NUM_ROWS, "vocab_size": VOCAB_SIZE, "threads": 1, "cpu_milliseconds": medians}
    print(write_result("sampling", content, code=CODE))


def _choose(settings: dict[str, Any]) -> Callable[[Tensor], object]:
    params = SamplingParams(**({"temperature": 1.0} | settings))
    places = [Place(Sequence(Request(row, PROMPT, params, seed=row), 0, [*PROMPT, *ANSWER])) for row in range(NUM_ROWS)]
    return lambda logits_LV: choose_tokens(logits_LV, places)


def _sort_and_multinomial(logits_LV: Tensor) -> list[int]:
    sorted_LV, ids_LV = logits_LV.sort(dim=-1, descending=True)
    sorted_LV[:, 50:] = float("-inf")
    probabilities_LV = sorted_LV.softmax(dim=-1)
    before_LV = probabilities_LV.cumsum(dim=-1) - probabilities_LV
    drawn_L1 = torch.multinomial(probabilities_LV.masked_fill_(before_LV >= 0.95, 0), 1)
    return ids_LV.gather(1, drawn_L1).squeeze(1).tolist()


if __name__ == "__main__":
    main()
