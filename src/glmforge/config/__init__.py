"""Configuration of models and runs: pydantic models, YAML, presets and overrides. Never imports torch."""

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.load import dump_config, load_config, load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.presets import preset_names
from glmforge.config.schema import (
    CheckpointConfig,
    DataConfig,
    FaultToleranceConfig,
    ObserveConfig,
    OptimConfig,
    ParallelConfig,
    PhaseConfig,
    PrecisionConfig,
    RunConfig,
    SourceConfig,
)

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "FaultToleranceConfig",
    "Layout",
    "ModelConfig",
    "ObserveConfig",
    "OptimConfig",
    "ParallelConfig",
    "PhaseConfig",
    "PrecisionConfig",
    "RunConfig",
    "SourceConfig",
    "dump_config",
    "load_config",
    "load_model_config",
    "preset_names",
    "resolve_layout",
]
