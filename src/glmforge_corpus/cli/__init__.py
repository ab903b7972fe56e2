"""The commands that this package adds to `glmforge data`, by the panel of its help that they stand in."""

from collections.abc import Callable

from glmforge_corpus.cli import corpus, quality, shape, synthesise

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Corpus": (corpus.run, corpus.extract, corpus.clean, corpus.dedup, corpus.decontaminate),
    "Statistics, samples, augmentation": (shape.analyze, shape.sample, shape.augment),
    "Classifiers": (quality.train_quality, quality.train_toxicity),
    "Synthetic data": (synthesise.problems, synthesise.generate),
}
