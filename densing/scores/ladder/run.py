"""One run of a ladder: what is trained, on what, and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from densing.scores.ladder.corpus import Corpus
from densing.scores.ladder.presets import Preset, Shape
from densing.scores.ladder.schedule import Budget, budgets


@dataclass(frozen=True)
class Run:
    """A model to train: one stable stage, exported at every token budget.

    Parameters
    ----------
    preset : Preset
        Where its hyper-parameters come from.
    shape : Shape
        Its size.
    seed : int
        Seed of initialisation and of the order of blocks.
    corpus : Corpus
        What it is trained on.
    steps : tuple of int
        Training steps of each budget.
    target : str
        Empty for a run of the ladder; ``longer``, ``clean`` or ``shuffled`` for a target whose answer is known.
    """

    preset: Preset
    shape: Shape
    seed: int
    corpus: Corpus
    steps: tuple[int, ...]
    target: str = ""

    @property
    def name(self) -> str:
        """Size and seed, what kind of target it is, and how many times the tokens it has."""
        factor = self.steps[-1] // (self.shape.steps or self.steps)[-1]
        return "-".join(
            filter(None, (self.target, f"{factor}x" if factor > 1 else "", self.shape.name, f"s{self.seed}"))
        )

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Branch and end of every budget."""
        return budgets(self.steps, self.preset.decay)

    def tokens(self, steps: int) -> int:
        """Return the tokens that a number of steps trains on."""
        return self.preset.tokens(self.shape, steps)

    @property
    def work(self) -> int:
        """Steps to take in all: the stable stage to the last branch, and every decay."""
        plan = self.budgets
        return plan[-1].branch + sum(budget.end - budget.branch for budget in plan)

    def export_folder(self, folder: Path, budget: Budget) -> Path:
        """Return where the model of a budget goes."""
        return folder / "models" / f"{self.name}-{self.tokens(budget.end)}"

    def checkpoint(self, folder: Path, stage: str) -> Path:
        """Return where the state of a stage (``stable`` or ``decay``) is kept."""
        return folder / "runs" / self.name / f"{stage}.pt"

    def exported(self, folder: Path, budget: Budget) -> bool:
        """Whether a budget is done: its description is written last."""
        return (self.export_folder(folder, budget) / "densing.json").is_file()
