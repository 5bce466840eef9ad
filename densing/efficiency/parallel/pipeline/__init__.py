"""Pipeline parallelism, one stage per rank: the schedule, what is sent between stages, and the training of a stage.

``turns`` (the schedule) and ``coding`` need no torch and are shared by plans and runs.
"""
