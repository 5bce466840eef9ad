"""What ten natural tasks try first in Python: it exists, or its error names what does."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

import densing
import densing.efficiency.throughput
import densing.scores.density
import densing.scores.references
import densing.scores.study
from densing.core import Card, InputError, Readable
from tests.support import folders
from tests.support.command import answer

SCORES = "examples/my_scores.csv"


@pytest.fixture(scope="module")
def density() -> densing.DensityResult:
    reference = densing.load_reference("qwen1.5", "mmlu")
    return densing.catalog_densities(densing.load_catalog(), reference).headline


@pytest.mark.parametrize("name", sorted(densing.GUESSES))
def test_a_first_guess_is_answered_with_names_that_exist(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(densing, name)
    said = str(caught.value).partition("; ")[2]
    called = set(re.findall(r"(\w+)\(", said))
    methods = {"plot": densing.TrendResult, "from_density": densing.TrendData}
    assert called, said
    for other in called:
        assert other in densing.__all__ or hasattr(methods[other], other), other
    assert name not in densing.__all__


@pytest.mark.parametrize(("old", "new"), densing.RENAMED.items())
def test_the_name_of_the_last_version_still_answers_and_warns(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"densing\.{old} is now densing\.{new}") as warned:
        found = getattr(densing, old)
    assert found is getattr(densing, new) and warned[0].filename == __file__
    assert old not in densing.__all__


@pytest.mark.parametrize(
    "module", [densing.efficiency.throughput, densing.scores.density, densing.scores.references, densing.scores.study]
)
def test_modules_still_answer_to_their_names_of_the_last_version(module: ModuleType) -> None:
    for old, new in module.RENAMED.items():
        with pytest.warns(DeprecationWarning, match=rf"\.{old} is now .*\.{new};") as warned:
            found = getattr(module, old)
        assert found is getattr(module, new) and warned[0].filename == __file__
        assert old not in dir(module)


def test_another_name_is_answered_with_the_nearest_or_where_all_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'load_catalogue'; did you mean densing\.load_catalog"):
        _ = densing.load_catalogue  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"dir\(densing\) lists"):
        _ = densing.xyzzy  # type: ignore[attr-defined]
    assert not hasattr(densing, "__wrapped__") and not hasattr(densing, "load_results")


def test_densities_of_a_path_of_results_are_those_of_the_command() -> None:
    folder = folders.DATA / "lm_eval"
    found = densing.run_densities(folder, reference="qwen1.5")
    rows = answer("density", "--results", folder, "-r", "qwen1.5")
    assert found.table["density"].round(6).tolist() == [round(row["density"], 6) for row in rows]
    assert {"catalog: OPT-125M (normalised)"} < set(found.table["size_from"])
    assert "own-size" not in {note.code for note in found.notes} and any("size" in note.message for note in found.notes)
    assert len(densing.run_densities(str(folder), None, "qwen1.5").table) == len(found.table)


def test_measurements_without_models_say_what_is_missing() -> None:
    with pytest.raises(InputError, match="no models; give their sizes as a table"):
        densing.run_densities(pd.DataFrame())


def test_a_law_is_fitted_to_a_table_as_to_its_arrays() -> None:
    runs = pd.DataFrame({"Parameters": [1e8, 1e9, 1e10, 1e11]})
    runs["loss"] = 10 * runs["Parameters"] ** -0.1
    table = densing.fit_law("power", runs, bootstrap=0)
    arrays = densing.fit_law("power", {"params": runs["Parameters"].to_numpy()}, runs["loss"].to_numpy(), bootstrap=0)
    assert table.params.to_dict() == arrays.params.to_dict() == pytest.approx({"A": 10.0, "alpha": 0.1})
    swapped: Any = runs
    with pytest.raises(InputError, match=r"the law first: fit_law\('chinchilla', runs\)"):
        densing.fit_law(swapped, "power")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no y; give arrays"):
        densing.fit_law("power", {"params": [1e8, 1e9]})


def test_results_draw_themselves(density: densing.DensityResult) -> None:
    trend = densing.estimate_trend(densing.TrendData.from_density(density), permutations=19, bootstrap=50)
    drawn = density.plot(trend)
    assert isinstance(drawn, go.Figure) and drawn == densing.plot_density(density, trend)
    assert trend.plot() == densing.plot_estimates(trend)


def test_a_result_without_a_figure_says_so() -> None:
    class Sum(Readable):
        def card(self) -> Card:
            return Card("A sum")

    with pytest.raises(ValueError, match=r"A sum: there is no figure of it; densing\.plots"):
        Sum().plot()
