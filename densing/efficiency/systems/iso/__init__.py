"""ISO: two parts of each sequence alternate, so that the all-reduce of one overlaps the compute of the other.

Claims: prefill with two alternating parts of a sequence. The paper gives two reductions and no table; independent
measurements are in pull requests and issues of vLLM and its forks, and in TokenWeave. Devices and links are those of
the data sheets where nothing is fitted, so the shares of communication are ours.

Source: Xiao and Su, arXiv 2409.11155.
"""
