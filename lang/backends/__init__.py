"""Where programs' calls go: an engine in this process, a server, or a script for tests."""
