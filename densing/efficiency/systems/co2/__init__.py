"""CO2: the parameters of one round are averaged while the next round computes.

Claims: the throughput of TransNormer-LLM 7B over slow links. The published figures are words per second that a review
quotes. Compute is fitted to one node, the link between nodes to AdamW's step on 16 or 128 devices, whose communication
counts as exposed whole; CO2 is then predicted.

Source: Sun et al., ICLR 2024, arXiv 2401.16265.
"""
