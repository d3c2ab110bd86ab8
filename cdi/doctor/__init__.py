"""Whether shares will be enforced on this node: evidence that is read, and what it comes to."""
