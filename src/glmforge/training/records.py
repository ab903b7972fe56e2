"""Which steps have a record, and which records tell more than others; the same on all ranks.

Records are for reading, and most of their bytes come once per layer. So a run has at most this many of them with lists
per layer, and far fewer with the load of every expert.
"""

from glmforge.training.trainer import Trainer

LAYER_RECORDS = 10_000
"""At most this many records of a run have per-layer values: one a quarter of an hour in a run of months."""
EXPERT_LOAD_RECORDS = 20
"""And this many have the whole table of expert loads: enough for a picture, small on disk."""


def has_record(trainer: Trainer) -> bool:
    """Whether the step that has just been taken is a logging step."""
    return trainer.state.step % trainer.config.observe.log_every == 0 or trainer.state.is_done


def is_one_of(trainer: Trainer, num_records: int) -> bool:
    """Whether this step's record is among the given number of records that get these values.

    In a run of unknown length that many of the first records have it, and then ever fewer.
    """
    state, total = trainer.state, trainer.source.total
    every = max(1, -(-(state.step if total is None else total.steps) // num_records))
    return state.step % every < trainer.config.observe.log_every or state.is_done
