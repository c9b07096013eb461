"""What the start of a kernel takes, whatever it does: the empty gates have an empty kernel in each call's place.

How long a kernel takes to start differs from process to process by more than most things do (H200: two kinds of
process, 0.15 to 0.2 us apart for each kernel on the queue). The call's own first start is in the gates with calls, the
empty kernel's in the gates beside them, so their difference does not have it; what is added again is one constant.
"""

START_NS = 200.0
"""What is added for it. An empty kernel takes 0.55 us on an H200 by the vendor's trace; but whatever comes behind a
kernel that wrote starts up to 0.35 us later than behind an empty one, which our readings have and the trace has not.
With 0.2 us, readings of kernels from 2 us on agree with the trace (`benchmarks/fidelity.py`, part accuracy). Nominal on
every other device: there, all times are off by one small constant."""
