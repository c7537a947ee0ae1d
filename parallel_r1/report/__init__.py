"""Tables, plots and a trace viewer: one self-contained page about one run."""

from parallel_r1.report.page import build_report

__all__ = ["build_report"]
