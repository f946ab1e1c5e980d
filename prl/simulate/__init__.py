"""The real controller in virtual time, on a machine of which only the pace is simulated: ``prl simulate``."""

from prl.simulate.costs import Costs, costs_of
from prl.simulate.report import Report, report_of
from prl.simulate.run import Course, simulate

__all__ = ["Costs", "Course", "Report", "costs_of", "report_of", "simulate"]
