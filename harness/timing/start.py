"""What the start of a kernel takes, whatever it does: the empty gates have an empty kernel in each call's place.

How long a kernel takes to start differs from process to process by more than most things do (H200: two kinds of
process, 0.15 to 0.2 us apart for each kernel on the queue). The call's own first start is in the gates with calls, the
empty kernel's in the gates beside them, so their difference does not have it; what is added again is one constant.
"""

START_NS = 500.0
"""What an empty kernel takes on an H200, by the vendor's trace (0.51 us). Nominal on every other device: there,
all times are off by one small constant, the difference to what it takes there (`benchmarks/fidelity.py`, part
accuracy, reads it)."""
