"""Who takes part: each a program of its own, so that everybody runs in processes and in an environment of their own.

All of them understand the same few commands (`stage`), do the same work in their handlers and publish the same payload.
A peer's environment has nothing of ours in it, so this package and `stage` need the standard library only.
"""
