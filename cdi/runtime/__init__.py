"""Container runtimes: what their configuration says of CDI, and what it shall say."""
