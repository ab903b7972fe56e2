"""Text generation: greedy, temperature and top-p sampling over a batch of prompts of different length.

One prefill for all prompts (padded on the right), then one token per row and step from the KV cache. A row stops at
any of its stop tokens or at `max_new_tokens`; finished rows ride along until all are done. Of the model it asks for
`Decoder` only.

Shapes: B prompts, S tokens, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.cuda_graph import Recorded
from glmforge.model.cache import KVCache


class Decoder(Protocol):
    """A language model that gives the logits of the next token, `GlmMoe` for one."""

    config: ModelConfig
    compute_dtype: torch.dtype

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def decode(self, ids_BS: Tensor, num_valid_B: Tensor, cache: KVCache) -> Tensor:
        """Logits `[B, V]` after the last of the first `num_valid_B` new tokens of every row, which join the cache."""
        ...


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature = 0` is greedy; `top_p` keeps the smallest set of tokens whose
    probability reaches it; `vocab_size` bars ids from there on (an embedding padded past its tokenizer)."""

    temperature: float = 0.0
    top_p: float = 1.0
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature: {self.temperature} is negative; 0 is greedy, 1 samples as trained")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} is not in (0, 1]; 1 keeps every token")

    def choose(self, logits_BV: Tensor, generator: torch.Generator | None) -> Tensor:
        """Next token ids `[B]`."""
        logits_BV = logits_BV.float()
        if self.vocab_size is not None:
            logits_BV = logits_BV[:, : self.vocab_size]
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        probabilities_BV = (logits_BV / self.temperature).softmax(dim=-1)
        if self.top_p < 1:
            probabilities_BV = _nucleus(probabilities_BV, self.top_p)
        return torch.multinomial(probabilities_BV, 1, generator=generator).squeeze(1)


def _nucleus(probabilities_BV: Tensor, top_p: float) -> Tensor:
    """Zero all tokens outside the smallest set with total probability >= top_p; `multinomial` renormalises."""
    sorted_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True)
    before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
    kept_BV = sorted_BV.masked_fill(before_BV >= top_p, 0.0)
    return torch.zeros_like(probabilities_BV).scatter_(1, order_BV, kept_BV)


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    stop_ids: Sequence[int] = (),
    seed: int | None = None,
    on_token: Callable[[list[int | None]], None] | None = None,
    cuda_graph: bool = False,
) -> list[list[int]]:
    """New tokens of every prompt, without the prompt; a stop token that ended a row is its last one.

    Args:
        on_token: called after every step with the new token of each row (None for finished rows), for streaming.
        cuda_graph: replay the steps after the prompt from a CUDA graph, which attends to the cache's whole capacity in
            each. For bf16 on Hopper and Blackwell, and models whose experts take all tokens (no capacity factor).
    """
    _check_prompts(model, prompts, max_new_tokens)
    device = next(model.parameters()).device
    if cuda_graph:
        check_recordable(device, model.compute_dtype)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    lengths = [len(prompt) for prompt in prompts]
    ids_BS = torch.zeros(len(prompts), max(lengths), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids_BS[row, : len(prompt)] = torch.tensor(prompt)
    lengths_B = torch.tensor(lengths, device=device)
    cache = KVCache(model.config, len(prompts), max(lengths) + max_new_tokens, model.compute_dtype, device)

    next_B = sampling.choose(model.decode(ids_BS.to(device), lengths_B, cache), generator)
    rows: list[list[int]] = [[] for _ in prompts]
    stopped = [False] * len(prompts)
    ones_B = torch.ones_like(lengths_B)

    def decode(ids_B: Tensor) -> Tensor:
        return model.decode(ids_B[:, None], ones_B, cache)

    cache.reads_all_slots = cuda_graph
    next_logits = Recorded(decode) if cuda_graph else decode
    for step in range(max_new_tokens):
        fresh = [None if done else token for token, done in zip(next_B.tolist(), stopped, strict=True)]
        for row, token in enumerate(fresh):
            if token is not None:
                rows[row].append(token)
                stopped[row] = token in stop_ids
        if on_token is not None:
            on_token(fresh)
        if all(stopped) or step == max_new_tokens - 1:
            break
        next_B = sampling.choose(next_logits(next_B), generator)
    return rows


def check_recordable(device: torch.device, compute_dtype: torch.dtype) -> None:
    """Raise `ValueError` where `F.grouped_mm` reads the experts' numbers of rows on the host, or there is no GPU."""
    if device.type != "cuda":
        raise ValueError(f"cuda_graph: the model is on {device.type}; move it to a GPU, or leave this out")
    if compute_dtype != torch.bfloat16:
        raise ValueError(f"cuda_graph: the model computes in {compute_dtype}; set compute_dtype to torch.bfloat16")
    if torch.cuda.get_device_capability(device)[0] not in (9, 10):
        raise ValueError("cuda_graph: needs a GPU of compute capability 9 or 10; leave this out")


def _check_prompts(model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: {max_new_tokens}; at least 1")
    if any(isinstance(prompt, int | str) for prompt in prompts):
        raise TypeError(
            "prompts: must be a list of prompts, each a list of token ids, such as [[1, 2, 3]]; "
            "for text [tokenizer.encode(text)]"
        )
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ValueError("prompts: every prompt needs at least one token; start with [gMASK]<sop> or end-of-text")
    vocab_size = model.config.vocab_size
    for row, prompt in enumerate(prompts):
        worst = max(prompt, key=lambda token: token if token >= 0 else vocab_size)
        if not 0 <= worst < vocab_size:
            raise ValueError(f"prompts[{row}]: token {worst} lies outside the vocabulary of {vocab_size}")
    longest, limit = max(map(len, prompts)) + max_new_tokens, model.config.max_position_embeddings
    if longest > limit:
        raise ValueError(
            f"prompts: the longest with max_new_tokens = {max_new_tokens} needs {longest} positions, the model has "
            f"{limit} (max_position_embeddings)"
        )
