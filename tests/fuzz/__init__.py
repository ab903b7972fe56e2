"""Files from outside, damaged in every way: each is accepted, or refused in one line, quickly, in little memory.

Each `test_<format>.py` describes one format; `python -m fuzz --help` (with `tests` on the path) runs any number of
cases of any of them, and replays one.
"""
