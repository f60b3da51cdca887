"""The operators' side: the command line and the MCP server, and later the console, over one set of services."""
