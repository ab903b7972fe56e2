"""Held-out bits per byte, and how often the MTP layer agrees with the trunk.

Bits per byte compares models with different tokenizers: the summed loss in bits over the bytes of text it was paid for.
MTP acceptance is the share of tokens that speculative decoding would accept: the MTP layer's greedy guess for a token
is also the trunk's, once the trunk gets there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.data.stream.evaluation import evaluation_windows
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer, token_byte_lengths
from glmforge.evaluate.scoring import ScoringHead, TokenScores
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.kernels.documents import Documents
from glmforge.model.loss import labels_at_depth
from glmforge.model.transformer import ForwardOutput, GlmMoe
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.world import World

_ROWS_PER_BATCH = 8


@dataclass(frozen=True)
class HeldOut:
    """A named shard that is never trained on."""

    name: str
    shard: TokenShard


@torch.no_grad()
def evaluate_held_out(
    model: GlmMoe,
    *,
    held_out: Sequence[HeldOut],
    tokenizer: Tokenizer,
    world: World,
    seq_len: int,
    max_tokens: int,
) -> list[Record]:
    """One record per source: bits per byte, nll per token, tokens, bytes and MTP acceptance. Collective."""
    byte_lengths = token_byte_lengths(tokenizer)
    records = []
    for source in held_out:
        windows = list(evaluation_windows(source.shard, seq_len, max_tokens, byte_lengths, batch_size=_ROWS_PER_BATCH))
        totals = torch.zeros(5, dtype=torch.float64, device=world.device)
        # Every rank runs the same number of forwards, as sharded weights require; past the end it scores nothing.
        for first in range(0, len(windows), world.size):
            index = first + world.rank
            scored = windows[min(index, len(windows) - 1)]
            sums = _score(model, scored.batch.to(world.device), scored.num_bytes)
            totals += sums if index < len(windows) else torch.zeros_like(sums)
        records.append(_record(source.name, *world.sum(totals).tolist()))
    return records


def _score(model: GlmMoe, batch: Batch, num_bytes: int) -> Tensor:
    """float64 [5]: summed nll, labels, bytes, accepted guesses, guesses."""
    documents = batch.documents()
    labels_T = batch.labels_BS.flatten()
    with_mtp = model.config.num_nextn_predict_layers > 0
    output = model(batch.ids_BS, documents, head=ScoringHead(labels_T), with_mtp=with_mtp)
    num_labels = (labels_T != IGNORE_INDEX).sum()
    accepted, guesses = _acceptance(output, labels_T, documents) if with_mtp else (0, 0)
    sums = [output.main.nll_T.double().sum(), num_labels, num_bytes, accepted, guesses]
    return torch.stack([torch.as_tensor(x, dtype=torch.float64, device=labels_T.device) for x in sums])


def _acceptance(output: ForwardOutput[TokenScores], labels_T: Tensor, documents: Documents) -> tuple[Tensor, Tensor]:
    """Guesses of the first MTP layer for token t + 2 that equal the trunk's own choice at t + 1."""
    asked_T = labels_at_depth(labels_T, documents, 1) != IGNORE_INDEX
    trunk_T = output.main.greedy_T.roll(-1)
    return ((output.mtp[0].greedy_T == trunk_T) & asked_T).sum(), asked_T.sum()


def _record(source: str, nll: float, labels: float, num_bytes: float, accepted: float, guesses: float) -> Record:
    return make_record(
        source=source,
        bits_per_byte=nll / math.log(2) / num_bytes,
        nll=nll / labels,
        num_tokens=int(labels),
        num_bytes=int(num_bytes),
        mtp_acceptance=accepted / guesses if guesses else None,
    )
