"""The length of a phase that is said in epochs."""

from pathlib import Path

import pytest

from glmforge.config.schema import RunConfig
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.epochs import with_counted_epochs
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import ConfigError
