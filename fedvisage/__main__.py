"""`python -m fedvisage`: the same as the `fedvisage` command."""

from fedvisage.cli import main

main()
