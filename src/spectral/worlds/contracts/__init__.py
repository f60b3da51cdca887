"""What other contexts may rely on."""
