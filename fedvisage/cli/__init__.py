"""Thin commands: parse, call the library, render."""

from fedvisage.cli.main import main

__all__ = ["main"]
