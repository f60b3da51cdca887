"""What operators do and see: the services behind the command line and the agent tools.

Facts are read in one place and judged in another: what reads is SQL, what judges is a pure function of what was read.
"""
