"""CDI specs for AMD GPUs, partitions and shares.

Imports nothing, so that importing a part costs that part alone.
"""
