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
from glmforge.model.transformer import Activations, ForwardOutput, GlmMoe
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel

_ROWS_PER_BATCH = 8


@dataclass(frozen=True)
class HeldOut:
    """A named shard that is never trained on."""

    name: str
    shard: TokenShard


@torch.no_grad()
def evaluate_held_out(
    model: ParallelModel, *, held_out: Sequence[HeldOut], tokenizer: Tokenizer, seq_len: int, max_tokens: int
) -> list[Record]:
    """One record per source: bits per byte, nll per token, tokens, bytes and MTP acceptance. Collective."""
    byte_lengths = token_byte_lengths(tokenizer)
    world, data_ranks = model.world, model.world.layout.data_ranks
    records = []
    for source in held_out:
        windows = list(evaluation_windows(source.shard, seq_len, max_tokens, byte_lengths, batch_size=_ROWS_PER_BATCH))
        totals = torch.zeros(5, dtype=torch.float64, device=world.device)
        # Every rank runs the same number of forwards, as sharded weights require; past the end it scores nothing.
        for first in range(0, len(windows), data_ranks):
            index = first + world.data_rank
            scored = windows[min(index, len(windows) - 1)]
            sums = _score(model, scored.batch.to(world.device), scored.num_bytes)
            totals += sums if index < len(windows) else torch.zeros_like(sums)
        records.append(_record(source.name, *world.sum(totals).tolist()))
    return records


def _score(model: ParallelModel, batch: Batch, num_bytes: int) -> Tensor:
    """float64 [5]: summed nll, labels, bytes, accepted guesses, guesses; 0 but on one of the ranks with this batch."""
    documents, labels_T = batch.documents(), batch.labels_BS.flatten()
    num_mtp = model.config.num_nextn_predict_layers
    num_rows, seq_len = batch.ids_BS.shape
    share = TokenShare(num_rows, seq_len, model.world, model.parallel)
    outputs: list[ForwardOutput[TokenScores]] = []

    def run(part: GlmMoe, _: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        head = ScoringHead(share.take(labels_T))
        inputs = share.inputs(batch.ids_BS, documents, num_mtp)
        output = part(inputs, received, head=head, with_mtp=num_mtp > 0)
        if output.activations is None:
            outputs.append(output)
        return output.router.aux_loss, output.activations

    model.run(run, 1, (num_rows, seq_len), num_mtp=num_mtp, backward=False)
    if not outputs:  # the last section is on another rank
        return torch.zeros(5, dtype=torch.float64, device=labels_T.device)
    (output,) = outputs
    nll_T = share.put(output.main.nll_T)
    num_labels = (labels_T != IGNORE_INDEX).sum()
    accepted, guesses = _acceptance(output, labels_T, documents, share) if num_mtp else (0, 0)
    sums = [nll_T.double().sum(), num_labels, num_bytes, accepted, guesses]
    scored = torch.stack([torch.as_tensor(x, dtype=torch.float64, device=labels_T.device) for x in sums])
    # Ranks that share the rows have all found the same: one of them speaks.
    speaks = model.world.axis_rank("cp") == 0 and model.world.axis_rank("tp") == 0
    return scored if speaks else torch.zeros_like(scored)


def _acceptance(
    output: ForwardOutput[TokenScores], labels_T: Tensor, documents: Documents, share: TokenShare
) -> tuple[Tensor, Tensor]:
    """Guesses of the first MTP layer for token t + 2 that equal the trunk's own choice at t + 1."""
    asked_T = labels_at_depth(labels_T, documents, 1) != IGNORE_INDEX
    trunk_T, guess_T = share.put(output.main.greedy_T), share.put(output.mtp[0].greedy_T)
    return ((guess_T == trunk_T.roll(-1)) & asked_T).sum(), asked_T.sum()


def _record(source: str, nll: float, labels: float, num_bytes: float, accepted: float, guesses: float) -> Record:
    return make_record(
        source=source,
        bits_per_byte=nll / math.log(2) / num_bytes,
        nll=nll / labels,
        num_tokens=int(labels),
        num_bytes=int(num_bytes),
        mtp_acceptance=accepted / guesses if guesses else None,
    )
