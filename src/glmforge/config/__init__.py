"""Configuration of models and runs: pydantic models, YAML, presets and overrides. Never imports torch."""

from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.data import DataConfig, SourceConfig
from glmforge.config.fault_tolerance import FaultToleranceConfig
from glmforge.config.kernels import KernelsConfig
from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.load import dump_config, load_config, load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.observe import ObserveConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parallel import ParallelConfig, PrecisionConfig
from glmforge.config.phase import PhaseConfig
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "FaultToleranceConfig",
    "KernelsConfig",
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
