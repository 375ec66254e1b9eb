"""The node plugin of the Container Storage Interface."""
