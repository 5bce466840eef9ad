"""What the figures of a profile mean, and whose definitions they are."""

from __future__ import annotations

DEFINITIONS = (
    ("Window", "What is counted: steps, from the start of the first to the end of the last step that the host marked "
     "(ProfilerStep); all, from the first to the last work; hta, work launched before the last step began."),
    ("Partition", "With K, C and M the unions of compute, communication and memory work, the window W splits into "
     "|K| + |C \\ K| + |M \\ (K ∪ C)| + idle = |W|: compute, exposed communication, exposed copies, idle. Lengths are "
     "of unions, never sums of durations. (As in AMD TraceLens.)"),
    ("Hidden communication", "Overlap ratio |C ∩ K| / |C| (as in Holistic Trace Analysis and torch_tb_profiler); its "
     "ceiling is min(|C|, |K|) / |C|. Over ranks and steps, lengths add up before they are divided. The one definition "
     "of hidden on this page, of kinds of communication too; not told where most of it lies beyond the window."),
    ("Recoverable", "The part of a cost that lies on the critical path; for waiting, what the run would gain if every "
     "rank's own work were at the mean. A ceiling: removing one cause may expose the next. Causes come in its order."),
    ("Per step", "Sums over all ranks divided by the number of all ranks' steps; per window where no step is marked."),
    ("Waiting and transfer", "Of one collective, transfer is the shortest duration over its ranks and a rank's wait is "
     "its own duration less that (torch_tb_profiler, TraceLens); on comparable clocks, a rank waits from its own start "
     "to the latest start (OSDI'25, arXiv 2505.05713)."),
    ("Bandwidth", "algbw = S / t and busbw = algbw × f, f = 2(n−1)/n for all-reduce, (n−1)/n for all-gather, "
     "reduce-scatter and all-to-all, 1 for broadcast and reduce; factors recalled from nccl-tests, not re-read. "
     "t holds the wait for other ranks, so these are lower bounds. 1 GB is 10⁹ bytes."),
    ("Clocks", "A rank's offset is the median difference of the ends of matched collectives; the residual is the "
     "median distance of single collectives from it. A constant error repeats in every step, so a rank is named as the "
     "one waited for only where it stays that with every clock off, against it, by the upper confidence limit of the "
     "residual; else who it is lies within clock error, and no probability is given."),
    ("Idle", "Nothing runs on the device. The cause is told by the work that ends the gap and the call that launched "
     "it: launched too late, launched but not begun, waiting for communication."),
    ("Critical path", "The chain of work and waits that ends with the window, followed back along launches, streams, "
     "synchronisations and, between ranks, collectives. What is not on it costs nothing."),
    ("Slowdown by uneven ranks", "Length of the run replayed as recorded over its length with every rank's local work "
     "at the mean over ranks and transfers at their median (after OSDI'25)."),
)  # fmt: skip
