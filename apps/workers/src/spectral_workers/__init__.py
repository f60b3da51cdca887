"""The worker process: finds consumers by name, runs them until it is told to stop, and says how it is.

locate      `module:attribute` → the consumers
logs        one JSON object per line, unless somebody configured structlog before
stopping    signals, whatever the event loop is doing; and the way out
health      live, ready, health and metrics over HTTP, from a thread of its own
emitter     one worker of a database measures it for everybody's metrics
measured    a worker's numbers, for whoever reads them; also of a worker inside a program
telemetry   OpenTelemetry and Sentry, if the environment asks for them
process     one worker, from its settings to its exit code
supervise   several of them under one parent
"""
