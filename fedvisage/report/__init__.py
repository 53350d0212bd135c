"""The self-contained page of a run, from the files of its folder alone."""

from fedvisage.report.page import write_report

__all__ = ["write_report"]
