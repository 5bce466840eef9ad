"""What the flags of a score mean for its use.

Four roles: a *wrong* value is left out unless asked for; a value of a different *protocol* is comparable only
inside its own series and says nothing about disagreement; a *floor* value is a censored observation, so it
stays; the other flags (implausible, quoted, rounded) inform a reader and change nothing. Values that merely
look implausible stay in on purpose: leaving out what is low for its size would push densities up.
"""

from __future__ import annotations

import pandas as pd

WRONG = frozenset(
    {
        "suspect_copy_of_bbh",
        "suspect_harness_failure",
        "erratic_harness",
        "conflicting_duplicate",
        "intermediate_checkpoint",
    }
)
OTHER_PROTOCOL = frozenset({"multiple_choice_no_cot", "math500_subset", "unnormalised_acc", "english_only"})
FLOOR = frozenset({"below_chance", "zero_score", "at_floor"})
REMARKS = frozenset(
    {
        "outlier_vs_other_sources",
        "below_smaller_sibling",
        "upstream_wrong_version",
        "vendor_value_not_remeasured",
        "rounded_2dp",
        "recovered_from_normalised",
    }
)
FLAGS = WRONG | OTHER_PROTOCOL | FLOOR | REMARKS


def has_flag(flags: pd.Series, wanted: frozenset[str]) -> pd.Series:
    """Return which rows carry at least one of the wanted flags.

    Parameters
    ----------
    flags : pandas.Series
        Flags separated by ``;``, None or empty for none.
    wanted : frozenset of str
        Flags to look for.

    Examples
    --------
    >>> has_flag(pd.Series(["zero_score;erratic_harness", None, "zero_score"]), WRONG).tolist()
    [True, False, False]
    """
    found = [bool(wanted & set(cell.split(";"))) if isinstance(cell, str) else False for cell in flags]
    return pd.Series(found, index=flags.index, dtype=bool)
