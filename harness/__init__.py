"""The referee's side of Podium: problems, processes, clocks, verdicts and records, without any user interface."""

__version__ = "0.1.0"
