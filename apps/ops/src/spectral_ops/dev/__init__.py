"""`spectral dev`: a Postgres of its own and one worker that starts again when a file changes.

watch       which files there are, and which of them changed
reload      the worker process: started, stopped in good order, started again
stage       the server with the schema and a live generation
"""
