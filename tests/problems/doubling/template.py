#!POPCORN leaderboard doubling
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, shift = data
    return 2 * x + shift
