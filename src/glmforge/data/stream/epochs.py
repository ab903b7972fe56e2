"""How long a phase is whose length is said in epochs: only its data tell.

An epoch ends when the source that is through first has been passed through once, by the shares that the sources have in
the phase. With one source that is what everybody means by it; a source that is mixed in from a large corpus, to be
seen in part only, does not make an epoch longer. To go through several sources equally often, weigh them by their size.
"""

import math
from collections.abc import Mapping

from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.sources import Sources
from glmforge.data.tokens.shards import TokenShard


def with_counted_epochs(config: RunConfig, shards: Mapping[str, TokenShard]) -> RunConfig:
    """The run with `tokens` in place of every phase's `epochs`; packings must be there.

    Raises `DataError` for a source without a whole row.
    """
    sources = Sources(config, shards)
    phases = [phase if phase.epochs is None else _counted(config, phase, sources) for phase in config.phases]
    return config.model_copy(update={"phases": phases})


def _counted(config: RunConfig, phase: PhaseConfig, sources: Sources) -> PhaseConfig:
    weights = config.source_weights(phase)
    assert phase.epochs is not None
    samples = min(
        phase.epochs * sources.rows(phase, name).num_rows * sum(weights.values()) / weight
        for name, weight in weights.items()
    )
    # Of a rounding error there is to be no further batch.
    num_samples = max(1, math.ceil(samples * (1 - 1e-9)))
    return phase.model_copy(update={"epochs": None, "tokens": num_samples * phase.seq_len})
