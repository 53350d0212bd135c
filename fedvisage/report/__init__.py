"""The self-contained page of a run, from the files of its folder alone."""

from fedvisage.report.absences import Absence, absence_lines, run_absences
from fedvisage.report.page import write_report

__all__ = ["Absence", "absence_lines", "run_absences", "write_report"]
