#!POPCORN leaderboard vectoradd
"""Torch's own addition."""


def custom_kernel(data):
    """float16 A + B."""
    a, b = data
    return a + b
