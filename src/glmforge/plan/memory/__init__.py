"""The most memory that each rank of a layout needs in a training step, by closed forms: what a dry run finds out by
running a step, here in a millisecond."""
