"""Reads what a machine has: its AMD GPUs and their partitions."""
