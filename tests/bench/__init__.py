"""`python -m tests.bench`: speed of `/filter` and `/webhook` as ratios to baselines of the same run.

Baselines: the literal reference (also the oracle: same node, same cards), and a no-op behind the same bare ASGI mount.
"""
