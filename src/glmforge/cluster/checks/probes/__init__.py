"""What is asked of a node. Each module here is sent there as it stands, and runs alone:

- `gather(cluster)` gets the content of `cluster.yaml` as a dictionary and returns what it found as plain JSON values;
- it imports the standard library only, runs on Python 3.8 or newer, and judges nothing: the check of the same subject
  does, where thresholds are known;
- what cannot be found out is None, or an entry of its own that says why;
- it changes nothing, except in files that it made itself and removes.
"""
