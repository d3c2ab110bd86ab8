"""The OCI hook that refuses to start a container that cannot be held to its share."""
