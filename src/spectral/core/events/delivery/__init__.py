"""The flow: one verb per file, in the order in which an event travels. Ports only, no driver."""
