"""What a node is given beside the command: the hook, the library, their places and units."""
