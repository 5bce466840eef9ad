"""SpaFL: clients keep their own weights and mask whole rows of them; only the rows' thresholds are sent.

Claims: traffic, counted from the shapes of the released networks, and directions, tested in the check itself on
handwritten digits among ten clients that hardly share a digit. The paper's accuracies were not read and are not listed.

Source: Kim, Saad, Debbah, Hong, NeurIPS 2024, arXiv 2406.00431.
"""
