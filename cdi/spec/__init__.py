"""Renders CDI specs, and reads and checks those of a directory."""
