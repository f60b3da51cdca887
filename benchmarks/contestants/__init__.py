"""Who takes part: each a program with `setup`, `work` and `publish`, so that everybody runs in processes of their own.

They print one line for each event, its number and the machine's monotonic clock: `publish` when its commit returned,
`work` when its handler was called. A peer runs in an environment of its own, with nothing of ours in it.
"""
