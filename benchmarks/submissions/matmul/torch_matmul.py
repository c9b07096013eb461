#!POPCORN leaderboard matmul
"""Torch's own product: the vendor's library."""


def custom_kernel(data):
    """float16 A @ B."""
    a, b = data
    return a @ b
