"""The trainer, its step and the hooks around it. Calling the package itself runs a configuration."""

import sys

from glmforge import TrainPackage

sys.modules[__name__].__class__ = TrainPackage
