"""What is asked of a node. Each module here is sent there as it stands, and runs alone:

- `gather(cluster)` gets the content of `cluster.yaml` as a dictionary and returns what it found as plain JSON values;
- it imports the standard library only, and other modules of this package by name, which then go there with it
  (`from glmforge_ops.health.checks.probes.x import y`);
- it runs on Python 3.8 or newer, and judges nothing: the check of the same subject does, where thresholds are known;
- other functions of it are what checks call that do something with several nodes (`action.py`), each with the cluster
  and the arguments for that node;
- it changes nothing, except in files that it made itself and removes.
"""
