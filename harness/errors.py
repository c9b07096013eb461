"""The user's and the machine's mistakes: one line that says what to do, never a traceback."""


class PodiumError(Exception):
    """Something that ended a command before a submission could be judged; its text is shown as it is."""


class ProblemError(PodiumError):
    """A problem folder that cannot be used: names the file, the line and the field."""


class SubmissionError(PodiumError):
    """A submission file that cannot be read at all (missing, a folder, not UTF-8)."""


class SeedError(PodiumError):
    """A seed file that cannot be used, or hidden cases that cannot be had again."""


class DeviceError(PodiumError):
    """The asked device is not there or cannot be used."""


class StoreError(PodiumError):
    """The leaderboard's database cannot be opened or written."""
