"""What starts the ranks of an attempt on the nodes; see `glmforge.launch.starters.base`."""
