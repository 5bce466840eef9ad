"""T3: the reduce-scatter of a matrix product's output begins while the product is still being computed.

The product writes its output in stages; a tracker in the memory controller sees a stage complete and triggers its
transfer, which is reduced near memory. The all-gather that completes the all-reduce is unchanged.

Claims: all published figures are from a reading note. A sub-layer is a product, its reduce-scatter and its all-gather;
the mix is that of Mega-GPT-2 and T-NLG over 8 and 16 devices. The speed of compute against that of the link is fitted
to the geometric mean of the ideal overlap (the preset's is a guess), each contention to one geometric mean; the largest
speed-ups and whole steps then follow. Shares of communication are predicted from the hardware that the note describes;
traffic to memory is counted.

Source: Pati et al., ASPLOS 2024, arXiv 2401.16677, through a reading note (second-hand).
"""
