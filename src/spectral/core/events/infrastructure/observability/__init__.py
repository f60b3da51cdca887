"""The room of the tools that watch: traces now; logs, metrics and error reports when their time comes."""
