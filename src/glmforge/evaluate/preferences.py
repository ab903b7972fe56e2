"""Held-out pairs: how often a model puts the chosen answer first, with Wilson's interval, and other measures.

One function answers for every pair, `answer_values`: for held-out pairs here, and for the log-probabilities of DPO's
reference before training. It runs batches as training does, with the same rows in them, so that what it says of a batch
equals, to the last bit, what training says of it before the first step.

Shapes: P pairs; column 0 chosen, column 1 rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from glmforge.backend.global_batch import run_section
from glmforge.data.preferences.stream import PairStream
from glmforge.evaluate.statistics import estimate
from glmforge.kernels.experts import as_in_training
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.objectives.pair_metrics import PAIR_METRICS, pair_metric_values, pair_sums
from glmforge.objectives.pairs import AnswerObjective, pairs_of
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metric_table import Metric, MetricTable
from glmforge.observe.metrics import METRICS, Record
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel

HELD_OUT_METRICS = (
    *(
        Metric(f"held_out_{row.name}", row.unit, "evaluation", f"of held-out pairs: {row.meaning}")
        for row in PAIR_METRICS
    ),
    Metric("held_out_pair_accuracy_low", "fraction", "evaluation", "lower end of its 95 % interval (Wilson)"),
    Metric("held_out_pair_accuracy_high", "fraction", "evaluation", "upper end of its 95 % interval"),
    Metric("num_pairs", "pairs", "evaluation", "held-out pairs of answers that were compared"),
)
_TABLE = MetricTable([*METRICS.values(), *HELD_OUT_METRICS])


@dataclass(frozen=True)
class HeldOutPairs:
    """Pairs that are never trained on, of several sources by name. `scale` times a value less `reference_P2` (if any)
    is the score that is compared: beta for DPO."""

    stream: PairStream
    names: Sequence[str]
    scale: float = 1.0


@torch.no_grad()
def answer_values(
    model: ParallelModel,
    stream: PairStream,
    objective: AnswerObjective,
    batch_size: int,
    micro_batch_size: int | None = None,
    *,
    adapters: bool = True,
    alive: Alive = quiet,
    what: str = "pairs",
) -> Tensor:
    """float64 [P, 2] on the host: what `objective.answers_N` says of every answer of the stream. Collective.

    Args:
        model: in evaluation mode.
        batch_size: rows of all ranks at once, as in training; `micro_batch_size` of a rank, None: all of its own.
        adapters: False: what the base model says.
        alive: called before each batch, with `what` it is done for.
    """
    world, data_ranks = model.world, model.world.layout.data_ranks
    values_P2 = torch.zeros(stream.num_pairs, 2, dtype=torch.float64, device=world.device)
    num_batches = -(-stream.num_samples // batch_size)
    for number in range(num_batches):
        alive(f"{what}, batch {number + 1} of {num_batches}")
        batch = stream.batch(number * batch_size, batch_size, world.data_rank, data_ranks).to(world.device)
        micro_batches = batch.micro_batches(micro_batch_size or len(batch.ids_BS))
        num_rows, seq_len = micro_batches[0].ids_BS.shape
        share = TokenShare(num_rows, seq_len, world, model.parallel, in_halves=model.parallel.ep_overlap)

        def run(part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
            one = micro_batches[index]  # noqa: B023 - called before the next batch
            output = run_section(part, received, objective, one, share, adapters=adapters)  # noqa: B023
            if output.is_last:
                pairs, answers_N = pairs_of(one), objective.answers_N(output, one, share)  # noqa: B023
                both_P2 = torch.stack((pairs.chosen_P, pairs.rejected_P), dim=1)
                # The last batch goes on with the rows of a second pass, which have been counted already.
                is_new_N = _repeated(one.sample_indices, one.document_lengths, stream.num_samples, world.device)
                known_P = (pairs.number_P >= 0) & is_new_N[pairs.chosen_P]
                found_P2 = share.once(answers_N[both_P2].double())  # noqa: B023
                values_P2.index_add_(0, pairs.number_P.clamp(min=0), found_P2 * known_P[:, None])
            return output.router.aux_loss, output.activations

        with as_in_training():
            model.run(run, len(micro_batches), (num_rows, seq_len), num_mtp=objective.num_mtp, backward=False)
    return world.sum(values_P2).cpu()


def evaluate_pairs(
    model: ParallelModel, alive: Alive = quiet, *, held_out: HeldOutPairs, objective: AnswerObjective, batch_size: int
) -> list[Record]:
    """A record per source, and one per category of a source that has several, as "source/category". Collective."""
    stream = held_out.stream
    values_P2 = answer_values(model, stream, objective, batch_size, alive=alive, what="evaluation")
    if stream.reference_P2 is not None:
        values_P2 = held_out.scale * (values_P2 - torch.from_numpy(stream.reference_P2).double())
    records = []
    for number, (name, pairs) in enumerate(zip(held_out.names, stream.sources, strict=True)):
        of_source_P2 = values_P2[int(stream.first_S[number]) : int(stream.first_S[number + 1])]
        lengths_P2 = torch.from_numpy(pairs.lengths_P2 - pairs.prompts_P[:, None])
        groups = [(name, np.ones(len(pairs), bool))]
        if len(pairs.names) > 1:
            groups += [(f"{name}/{c}", pairs.categories_P == k) for k, c in enumerate(pairs.names)]
        records += [_record(group, of_source_P2[is_in_P], lengths_P2[is_in_P]) for group, is_in_P in groups]
    return records


def _record(source: str, scores_P2: Tensor, lengths_P2: Tensor) -> Record:
    gap_P, num_pairs = scores_P2[:, 0] - scores_P2[:, 1], len(scores_P2)
    zeros_P, ones_P = torch.zeros(num_pairs, dtype=torch.int64), torch.ones(num_pairs)
    values = pair_metric_values(pair_sums(scores_P2, lengths_P2, zeros_P, ones_P, 1), [source])
    # A tie is half right: among whole successes it counts as the half of them that rounding down leaves.
    right_P = (gap_P > 0).numpy().astype(float)
    right_P[np.flatnonzero(gap_P == 0)[::2]] = 1.0
    interval = estimate(right_P)
    values |= {
        "pair_accuracy": values["pair_accuracy"][source],
        "pair_accuracy_low": interval.low,
        "pair_accuracy_high": interval.high,
        "pair_loss": float(softplus(-gap_P).mean()),
    }
    held_out = {f"held_out_{name}": value for name, value in values.items()}
    return _TABLE.record({"source": source, "num_pairs": num_pairs} | held_out)


def _repeated(
    samples: Sequence[int], document_lengths: Sequence[Sequence[int]], num_samples: int, device: torch.device
) -> Tensor:
    """[N]: whether the document is in a row of the first pass."""
    found = [number < num_samples for number, lengths in zip(samples, document_lengths, strict=True) for _ in lengths]
    return torch.tensor(found, device=device)
