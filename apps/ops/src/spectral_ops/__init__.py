"""The operators' side: the command line, and later the console and the MCP server, over one set of services."""
