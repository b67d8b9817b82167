"""The client in virtual time: real producers, in one thread, against the embedded cluster's own nodes.

`python -m tests.virtual --seed 17` replays one seed; `scenario.py` says what happens in it.
"""
