"""Parsing, calling one function, printing, exit codes."""
