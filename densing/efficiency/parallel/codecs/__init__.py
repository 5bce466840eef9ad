"""What a tensor becomes before it is sent, and what comes back: fewer bits, fewer entries, fewer frequencies.

``sizes`` says without torch what packets weigh; plans and runs use the same functions.
"""
