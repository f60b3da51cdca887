"""The agent tools: the services for operators, over the Model Context Protocol."""
