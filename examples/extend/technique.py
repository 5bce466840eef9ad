"""A technique to copy: a folder below ``densing/efficiency/systems/``, or an entry point ``densing.techniques``."""

from functools import partial

from densing.efficiency.systems import Knob, number
from densing.efficiency.systems.planner import Buckets, Replicated


class ShareOfTheBuckets(Buckets):
    """DDP's buckets, of which a share is sent."""

    def __init__(self, stage, share):
        super().__init__(stage)
        self.share = share

    def send(self, count, done):
        """Send the bucket's share of ``count`` bytes once ``done`` are over."""
        return super().send(count * self.share, done)


class Half(Replicated):
    """Sends a share of every gradient bucket and forgets the rest."""

    name, role = "half", "an example"
    paper, summary = "none", "a share of every gradient bucket is sent, the rest forgotten"
    changes_loss = "gradients without most of their entries"
    knobs = (Knob("share", 0.5, "of a bucket that is sent", number(0.0, 1.0)),)

    def exchange(self, knobs):
        """Return who lays the exchange of gradients into the step."""
        return partial(ShareOfTheBuckets, share=knobs["share"])


TECHNIQUE = Half()
