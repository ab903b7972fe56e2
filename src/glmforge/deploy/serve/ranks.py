"""A server on a model that several ranks share: rank 0 listens and leads, the others compute with it.

Signals are for rank 0: a launcher sends them to all ranks, and the others go when rank 0 has answered what it had to.
"""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from glmforge.deploy.serve.run import ServerConfig, serve
from glmforge.errors import GlmforgeError
from glmforge.evaluate.open_model import sharded_model
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.lead import leading
from glmforge.generate.sharded import ShardedModel
from glmforge.parallel.peers import PeerLostError
from glmforge.runtime.interrupts import end_with_torchrun

_TIMEOUT_S = 600.0
"""Of the messages between ranks; those come every few seconds at least."""


def serve_ranks(
    source: str,
    config: ServerConfig,
    settings: Callable[[ShardedModel], EngineConfig],
    *,
    dtype: torch.dtype | None = None,
    tokenizer: Path | None = None,
    parallel: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """As `run.serve`, on all ranks that a launcher has started; all call this together, and return together.

    Args:
        settings: of rank 0's engine, for the model that is loaded.
        dtype, tokenizer, parallel: as `open_model` takes them.

    Raises:
        GlmforgeError: as `run.serve` and `open_model` do; on all that are left, where a rank was lost.
    """
    end_with_torchrun()
    try:
        with sharded_model(source, dtype=dtype, tokenizer=tokenizer, parallel=parallel) as (runner, words):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 heeds it as long as it listens
            if not runner.model.world.is_main:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            with leading(runner, _TIMEOUT_S) as leader:
                if leader is not None:
                    serve(Engine(leader, settings(runner), tokenizer=words), config, say)
    except PeerLostError as error:
        raise GlmforgeError(f"{error.lost}; the server has ended; start it again") from None
