"""DiLoCo: many local steps, then an outer Nesterov step on the mean change; streaming: a part of the model at a time.

The paper's setting: AdamW inside (500 steps), an outer step of 0.7 with momentum 0.9. Streaming DiLoCo cuts the
parameters into fragments that take their outer steps in turn, so that the link carries a part of the model at a time,
and lets a fragment's mean arrive some steps late.

Here fragments are consecutive and equal in their number of parameters; one is under way at a time, so that the delay
is shorter than the turn of one. The change that travels keeps 32 bits; the paper's streaming form rounds it to 4.
"""
