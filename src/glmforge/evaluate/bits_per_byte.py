"""Held-out bits per byte, accuracy, and how often MTP layers agree with the trunk.

Bits per byte compares models with different tokenizers: the summed loss in bits over the bytes of text it was paid for.
Accuracy is the share of labels that are the model's likeliest token. Of conversations (shards with loss weights) all of
this is of what is trained on alone: labels of weight 0 are none, and the others count alike.
MTP acceptance at depth k is the share of tokens where the k-th MTP layer's greedy guess is also the trunk's, once the
trunk gets there: at depth 1, what speculative decoding would accept.

The batches of all sources are dealt to the data ranks in turn; each rank reads only its own and adds up what it finds
for its own tokens. The sums of all sources meet in one all-reduce over all ranks, at the end: the only communication
of an evaluation beside that of the model's forward passes. The exception are MTP layers where cp or tp ranks share a
row: a guess is compared with the trunk's choice for a later token, which may be another rank's, so the choices are
summed along these axes in every batch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.data.stream.evaluation import EvaluationBatches, Subset
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer, token_byte_lengths
from glmforge.errors import DataError
from glmforge.evaluate.scoring import TokenScores, score_batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.kernels.documents import Documents
from glmforge.model.loss import labels_at_depth
from glmforge.model.transformer import ForwardOutput
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel

_ROWS_PER_BATCH = 8
_NUM_PLAIN_SUMS = 4  # nll, labels, right choices, bytes; then accepted guesses and guesses of each MTP depth


@dataclass(frozen=True)
class HeldOut:
    """A named shard that is never trained on."""

    name: str
    shard: TokenShard


@torch.no_grad()
def evaluate_held_out(
    model: ParallelModel,
    alive: Alive = quiet,
    *,
    held_out: Sequence[HeldOut],
    tokenizer: Tokenizer,
    seq_len: int,
    subset: Subset,
) -> list[Record]:
    """One record per source: bits per byte, nll per token, accuracy, tokens, bytes, MTP acceptance. Collective.

    Args:
        model: in evaluation mode.
        alive: called before each batch.
        held_out: what to score.
        tokenizer: of the shards.
        seq_len: tokens per row.
        subset: what is scored of each source.

    Raises:
        DataError: in what is scored of a source there is no text to predict.
    """
    byte_lengths = token_byte_lengths(tokenizer)
    sources = [
        EvaluationBatches(each.shard, seq_len, subset, byte_lengths, rows_per_batch=_ROWS_PER_BATCH, source=index)
        for index, each in enumerate(held_out)
    ]
    places = [(source, index) for source, batches in enumerate(sources) for index in range(len(batches))]
    world, data_ranks = model.world, model.world.layout.data_ranks
    num_sums = _NUM_PLAIN_SUMS + 2 * model.config.num_nextn_predict_layers
    totals = torch.zeros(len(sources), num_sums, dtype=torch.float64, device=world.device)
    # Every rank runs the same number of forwards, as sharded weights require; past the end it scores nothing.
    for first in range(0, len(places), data_ranks):
        alive(f"evaluation, batch {first // data_ranks + 1} of {-(-len(places) // data_ranks)}")
        number = first + world.data_rank
        source, index = places[min(number, len(places) - 1)]
        scored = sources[source][index]
        sums = _score(model, scored.batch.to(world.device), scored.num_bytes)
        if number < len(places):
            totals[source] += sums
    records = zip(held_out, world.sum(totals).tolist(), strict=True)
    return [_record(source.name, *sums) for source, sums in records]


def _score(model: ParallelModel, batch: Batch, num_bytes: int) -> Tensor:
    """float64: summed nll, labels, right choices, bytes, then accepted guesses and guesses of each MTP depth.

    Of this rank's own tokens; the bytes are counted on one of the ranks that have this batch.
    """
    documents, labels_T = batch.documents(), batch.labels_BS.flatten()
    num_mtp = model.config.num_nextn_predict_layers
    num_rows, seq_len = batch.ids_BS.shape
    share = TokenShare(num_rows, seq_len, model.world, model.parallel)
    output = score_batch(model, batch, share, num_mtp)
    if output is None:  # the last section is on another rank
        return torch.zeros(_NUM_PLAIN_SUMS + 2 * num_mtp, dtype=torch.float64, device=labels_T.device)
    labels_o = share.own(labels_T)
    num_labels = (labels_o != IGNORE_INDEX).sum()
    num_right = (output.main.greedy_o == labels_o).sum()  # no token is IGNORE_INDEX
    bytes_once = share.once(torch.tensor(num_bytes, dtype=torch.float64, device=labels_T.device))
    guesses = _acceptance(output, labels_T, documents, share)
    sums = [output.main.nll_o.double().sum(), num_labels, num_right, bytes_once, *guesses]
    return torch.stack([x.double() for x in sums])


def _acceptance(
    output: ForwardOutput[TokenScores], labels_T: Tensor, documents: Documents, share: TokenShare
) -> Iterator[Tensor]:
    """Per MTP depth k, guesses for token t + k + 1 that equal the trunk's own choice at t + k, and all guesses."""
    if not output.mtp:
        return
    trunk_T = share.put(output.main.greedy_o)
    for depth, scores in enumerate(output.mtp, start=1):
        asked_o = share.own(labels_at_depth(labels_T, documents, depth) != IGNORE_INDEX)
        yield ((scores.greedy_o == share.own(trunk_T.roll(-depth))) & asked_o).sum()
        yield asked_o.sum()


def _record(source: str, nll: float, labels: float, right: float, num_bytes: float, *guesses: float) -> Record:
    if not num_bytes:
        raise DataError(
            f"held-out source '{source}': its scored subset has no tokens to predict; raise observe.evaluate_tokens, "
            "or use another source"
        )
    acceptance = [a / asked for a, asked in zip(guesses[::2], guesses[1::2], strict=True) if asked]
    return make_record(
        source=source,
        bits_per_byte=nll / math.log(2) / num_bytes,
        nll=nll / labels,
        accuracy=right / labels,
        num_tokens=int(labels),
        num_bytes=int(num_bytes),
        mtp_acceptance=acceptance[0] if acceptance else None,
        mtp_acceptance_by_depth=acceptance if len(acceptance) > 1 else None,
    )
