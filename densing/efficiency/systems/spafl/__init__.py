"""SpaFL: clients with weights of their own, whole rows of them masked; only the rows' thresholds travel.

Claims: traffic, counted from the shapes of the released networks, and directions, tried on handwritten digits among ten
clients that hardly share a digit, in the check itself. The paper's accuracies were not read and are not listed.

Source: Kim, Saad, Debbah, Hong, NeurIPS 2024, arXiv 2406.00431.
"""
