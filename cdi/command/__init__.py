"""The ``amd-cdi`` command line: the edge, where options become calls and results become text."""
