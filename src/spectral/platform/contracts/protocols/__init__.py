"""What other contexts may ask of platform, a module for each protocol. An app hands them the implementation."""
