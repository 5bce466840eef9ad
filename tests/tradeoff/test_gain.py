"""Gains of a ladder's folder: what was injected comes out, costs are per run, and bad folders are sentences."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.core import ArtefactError, DensingError, InputError, UnknownNameError, decode, plain
from densing.efficiency.systems.claims import RECORDS, recorded
from densing.report import build_gain
from densing.scores.ladder import WORLDS, Shift, fit_loss, fit_shift, pair_table, simulated_ladder
from densing.tradeoff import (
    GainRecord,
    check_record,
    gain_table,
    ladder_gain,
    null_test,
    read_arms,
    shipped_gains,
    tuned_listing,
)
from densing.tradeoff.gain import COLUMNS, _length_notes, _other_lengths, _reach_notes, simulated_step
from tests.support.command import printed
from tests.support.ladder_files import write_ladder

CONTRACT = {"arm", "density_ratio", "density_lo", "density_hi", "token_ratio", "token_lo", "token_hi", "bytes",
            "seconds", "joules", "kept_parameters", "pairs", "status", "no_loss", "density_one", "density_least",
            "density_most", "token_one", "token_least", "token_most"}  # fmt: skip


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    losses = simulated_ladder(tau=0.8, noise=0.003, common=0.003, spread=0.005, seeds=3)
    folder = tmp_path_factory.mktemp("gain")
    return write_ladder(folder / "ladder", losses, {"plain": "plain", "arm": "local-sgd:tau=8"})


def test_the_command_prints_the_contract_and_leaves_a_record_and_a_page(ladder: Path, tmp_path: Path) -> None:
    page = tmp_path / "gain.md"
    said = CliRunner().invoke(
        app, ["ladder", "gain", str(ladder), "--json", "--page", str(page)], catch_exceptions=False
    )
    assert said.exit_code == 0, said.output
    document = printed(said.stdout)
    (arm,) = document["arms"]
    assert set(arm) == CONTRACT == set(COLUMNS)
    assert (arm["arm"], arm["pairs"], arm["no_loss"]) == ("local-sgd:tau=8", 48, "no")
    assert arm["token_lo"] < 0.8 < arm["token_hi"]
    assert arm["density_ratio"] < 1
    record = decode(json.loads((ladder / "gain.json").read_text()), GainRecord)
    assert record.figures[0]["token_ratio"] == arm["token_ratio"]
    assert record.digest == document["digest"]
    text = page.read_text()
    assert "local-sgd:tau=8" in text and "nan" not in text.lower()
    assert "gains use validation loss only" in text


@pytest.mark.slow
def test_simulated_ladders_are_like_the_one_measured(ladder: Path, tmp_path: Path) -> None:
    page = tmp_path / "gain.md"
    options = ["ladder", "gain", str(ladder), "--json", "--null", "6", "--page", str(page)]
    found = printed(CliRunner().invoke(app, options, catch_exceptions=False).stdout)
    noise = found["spec"]["noise"]
    # The ladder was simulated with .003 of both.
    assert noise["common"] == pytest.approx(0.003, rel=0.5) and noise["noise"] == pytest.approx(0.003, rel=0.3)
    rows = {row["world"]: row for row in found["null"]}
    assert list(rows) == list(WORLDS) and {row["ladders"] for row in rows.values()} == {6}
    assert rows["no change"]["held"] >= 0.5 and rows["tokens x 2"]["gain"] >= 0.5
    assert "--null 6" in page.read_text() and "Do the intervals hold?" in page.read_text()
    with pytest.raises(InputError, match="one simulated ladder or more"):
        null_test(ladder_gain(ladder), ladders=0)


def test_costs_are_means_over_the_paired_runs(ladder: Path) -> None:
    gains = ladder_gain(ladder, watts=20)
    (arm,) = gains.arms
    steps = sum(round(tokens / 512) for tokens in gains.spec["tokens"]) / 4
    assert arm.bytes == pytest.approx(1000 * steps, rel=1e-3)
    assert arm.joules == pytest.approx(20 * arm.seconds)
    assert "stated: 20 W" in gains.evidence["joules"]
    # Both arms, 12 runs each: the stable stage to the last branch, and four decays.
    run = 0.01 * (0.8 * 1.64e6 + 0.2 * sum(gains.spec["tokens"])) / 512
    assert arm.core_seconds == pytest.approx(24 * run, rel=1e-2)
    assert gains.resolution()["half_width_hour"][0] == pytest.approx(
        arm.density.half_width * math.sqrt(arm.core_seconds / 7200)
    )
    # Steps of 8 x 64 tokens in a hundredth of a second each.
    assert arm.tokens_per_core_second == pytest.approx(51200)
    assert gains.spec["baseline_cost"]["tokens_per_core_second"] == pytest.approx(51200)
    assert "plain: 51,200" in gains.evidence["tokens_per_core_second"]
    assert "Gains over plain" in repr(gains)
    assert len(gains.frame()) == 1
    assert set(gains.by["by"]) == {"size", "tokens"}


def test_seconds_over_a_link_are_the_simulators(ladder: Path) -> None:
    export = json.loads(next((ladder / "models").glob("plain-d12-*")).joinpath("densing.json").read_text())
    local = {**export, "method": "local-sgd", "knobs": {"tau": "8"}}
    # A ring of four sends 1.5 times the parameters, in float32, after each step or after every eighth.
    wire = 1.5 * 4 * export["params_total"] / (100e6 / 8)
    plain_s, local_s = (simulated_step(one, "100mbit", 0.01) for one in (export, local))
    compute = 0.01 / 4
    assert max(compute, wire) <= plain_s <= compute + wire + 1e-6
    assert local_s == pytest.approx(compute + wire / 8, rel=0.05)
    assert "simulated" in ladder_gain(ladder, link="100mbit").evidence["seconds"]


def test_of_a_pipelines_arm_layers_are_stages_and_ranks_micro_batches(ladder: Path) -> None:
    export = json.loads(next((ladder / "models").glob("plain-d12-*")).joinpath("densing.json").read_text())
    all_, some = (
        simulated_step({**export, "method": "fusion", "knobs": {"r": r}}, "1mbit", 0.01) for r in ("1", "100")
    )
    schedule = export["schedule"]
    packet = schedule["batch"] // export["ranks"] * schedule["block"] * 12 * 4 / (1e6 / 8)
    # There and back for each micro-batch at least; a hundredth of the values weighs a fiftieth.
    assert all_ > 2 * packet and some < 0.2 * all_


def test_questions_come_second_each_set_with_a_law_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = simulated_ladder(tau=0.8, noise=0.003, common=0.003, spread=0.005, seeds=2)
    folder = write_ladder(tmp_path / "l", losses, {"plain": "plain", "arm": "co2:tau=8"})
    (folder / "eval").mkdir()
    rows = []
    for path in sorted((folder / "models").iterdir()):
        about = json.loads((path / "densing.json").read_text())
        loss = about["loss"]["validation_nats_per_token"]
        for task, factor in (("facts", 1.0), ("bigram", 0.5)):
            common = {
                "model": about["name"],
                "task": task,
                "benchmark": task,
                "n_items": 9,
                "task_hash": "h",
                "file": "f",
            }
            rows += [{**common, "metric": "bits_per_byte", "value": factor * loss},
                     {**common, "metric": "acc", "value": 0.5}]  # fmt: skip
    monkeypatch.setattr("densing.scores.evals.RunStore.measurements", lambda _: pd.DataFrame(rows))
    gains = ladder_gain(folder)
    sets = gains.by[gains.by["by"].eq("set")].set_index("value")
    assert list(sets.index) == ["mean", "bigram", "facts"]
    # A factor on all losses is no shift: every set says what the validation loss does.
    for ratio in sets["token_ratio"]:
        assert ratio == pytest.approx(gains.arms[0].tokens.ratio, rel=0.02)


def test_an_arm_that_changes_nothing_says_so(tmp_path: Path) -> None:
    losses = simulated_ladder(noise=0, common=0, seeds=2)
    gains = ladder_gain(write_ladder(tmp_path / "l", losses, {"plain": "plain", "arm": "plain:ranks=2"}))
    assert "changes-nothing" in {note.code for note in gains.notes}
    (arm,) = gains.frame().to_dict("records")
    assert (arm["status"], arm["no_loss"]) == ("no_change", "no change")
    assert arm["token_ratio"] is None and arm["density_lo"] is None
    assert "no ratio and no verdict" in " ".join(note.message for note in gains.notes)
    page = build_gain(gains, tmp_path / "gain.md").read_text()
    assert "0 of 1 arm" in page and "nan" not in page.lower()


def test_where_no_one_ratio_holds_the_headline_has_none(tmp_path: Path) -> None:
    losses = simulated_ladder(tau=0.5, bend=-0.4, noise=0.002, common=0.002, spread=0.005, seeds=3)
    folder = write_ladder(tmp_path / "l", losses, {"plain": "plain", "arm": "co2:tau=8"})
    gains = ladder_gain(folder)
    (row,) = gains.frame().to_dict("records")
    assert row["token_one"] == "no" and row["token_least"] < 0.5 < row["token_most"]
    (shown,) = gains.listing().cells()
    assert shown[2].endswith("by size and budget")
    assert "no one ratio" in repr(gains) and "no-one-ratio" in {note.code for note in gains.notes}
    # What is extrapolated from keeps the middle's value, with the trend and the test beside it.
    (kept,) = gains.record().figures
    assert kept["token_ratio"] == pytest.approx(0.5, rel=0.1)
    token = next(row for row in gains.record().trends if row["ratio"] == "token")
    assert token["trend_hi"] < 0 and token["p_value"] < 0.05
    ratios = gains.parts().set_index("value")["token_ratio"]
    assert ratios["307000"] > ratios["1640000"]
    said = CliRunner().invoke(app, ["ladder", "gain", str(folder)], catch_exceptions=False).output
    assert "by size and budget" in said
    assert "by size and budget" in build_gain(gains, tmp_path / "gain.md").read_text()


def test_a_law_that_no_plain_run_reaches_is_said_to_decide() -> None:
    losses = simulated_ladder(seeds=1)
    plain, (pairs, _) = losses[losses["arm"].eq("plain")], pair_table(losses, "arm")
    # Of four budgets three are worth less than plain training's least; of four sizes one.
    tokens = Shift("tokens", 0.2, 0.15, 0.25, "ok", 16, 8)
    (note,) = _reach_notes("co2", replace(tokens, axis="params", ratio=0.9), tokens, plain, pairs)
    assert "co2, token ratio" in note.message
    assert "61,400 to 328,000 tokens, and plain runs have 307,000 to 1,640,000" in note.message
    assert "`--arm plain:tokens=0.2` tells it there" in note.message
    assert len(_reach_notes("co2", tokens, replace(tokens, ratio=None), plain, pairs)) == 1


def test_plain_runs_of_other_lengths_say_what_the_law_is_but_not_of_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ratios by size and budget take ten times as long, and are not looked at.
    monkeypatch.setattr("densing.scores.ladder.shifts_by", lambda *_, **__: pd.DataFrame({"by": [], "value": []}))
    budgets = (3.07e5, 5.38e5, 9.47e5, 1.64e6)
    short = [0.25 * tokens for tokens in budgets]
    law = {"E": 2.186, "A": 50.85, "B": 27585.0, "alpha": 0.8388, "beta": 0.9474}
    every = simulated_ladder(
        tau=0.22, sizes=(1384, 3084, 5456), budgets=[*short, *budgets], seeds=2, theta=law, spread=0.003
    )
    of_plain, further = every["arm"].eq("plain"), every["tokens"].isin(short)
    nominal = every[of_plain & further].assign(arm="short", tokens=lambda rows: 4 * rows["tokens"])
    names = {"plain": "plain", "arm": "co2:tau=8", "short": "plain:tokens=0.25"}
    gains = ladder_gain(write_ladder(tmp_path / "l", pd.concat([every[~further], nominal]), names))
    co2, control = gains.arms
    pairs, _ = pair_table(every[~further], "arm")
    alone, both = (fit_shift(fit_loss(rows), rows, pairs, "tokens") for rows in (
        every[of_plain & ~further], every[of_plain]))  # fmt: skip
    assert co2.tokens.ratio == pytest.approx(both.ratio, rel=1e-3)
    assert co2.tokens.half_width < 0.7 * alone.half_width
    # What is measured tells nothing of the law: its ratio is not 1 by construction.
    assert control.tokens.hi is not None and control.tokens.hi < 0.5
    (known,) = (note for note in gains.notes if note.code == "known-ratio")
    assert known.severity == "info" and "0.25 is its token ratio" in known.message
    # Where those runs are worth more than a quarter of the tokens, the law is wrong there, and that is said.
    (wrong,) = _length_notes("plain:tokens=0.25", 0.1, control.tokens)
    assert wrong.severity == "warning" and "it does not hold there" in wrong.message


def test_plain_runs_with_a_rate_of_their_own_are_not_the_baselines() -> None:
    losses = pd.DataFrame({"arm": ["plain", "plain:tokens=0.25", "plain:lr=2,tokens=0.25"], "tokens": 4.0, "loss": 2.0})
    exports = [{"arm": arm, "size": "d8", "schedule": {"peak": 0.1}} for arm in losses["arm"]]
    (short,) = _other_lengths(exports, losses, "plain").values()
    assert short["tokens"].tolist() == [1.0]
    exports[1]["schedule"] = {"peak": 0.2}
    assert not _other_lengths(exports, losses, "plain")


def test_cells_that_miss_are_listed_and_what_is_no_loss_is_an_error(tmp_path: Path) -> None:
    losses = simulated_ladder(seeds=3)
    arm = losses["arm"].eq("arm")
    losses.loc[losses[arm & losses["seed"].eq(1)].index[:2], "loss"] = math.nan
    losses = losses.drop(losses[arm & losses["seed"].eq(2)].index[:3])
    gains = ladder_gain(write_ladder(tmp_path / "l", losses, {"plain": "plain", "arm": "slowmo"}, cost=False))
    assert len(gains.unmatched) == 5
    assert gains.arms[0].density.pairs == 43
    codes = {note.code: note for note in gains.notes}
    assert codes["unmatched"].severity == "error"
    assert "no run of slowmo" in codes["unmatched"].message or "no positive number" in codes["unmatched"].message
    assert "no-cost" in codes
    assert plain(gains.to_dict())["arms"][0]["bytes"] is None


def test_folders_without_what_is_needed_are_refused(tmp_path: Path, ladder: Path) -> None:
    with pytest.raises(InputError, match="no ladder here"):
        ladder_gain(tmp_path)
    with pytest.raises(UnknownNameError, match="local-sgd"):
        ladder_gain(ladder, baseline="co2")
    losses = simulated_ladder(seeds=2)
    alone = write_ladder(tmp_path / "alone", losses[losses["arm"].eq("plain")], {"plain": "plain"})
    with pytest.raises(InputError, match="only arm"):
        ladder_gain(alone)
    apart = losses.assign(seed=losses["seed"] + 9 * losses["arm"].eq("arm"))
    with pytest.raises(InputError, match="no run of an arm has a partner"):
        ladder_gain(write_ladder(tmp_path / "apart", apart, {"plain": "plain", "arm": "co2:tau=8"}))
    with pytest.raises(InputError, match="--watts"):
        ladder_gain(ladder, watts=-1)


@pytest.mark.parametrize(
    ("text", "ranks", "part"),
    [("co2:tau=0", 2, "tau"), ("co2:speed=3", 2, "speed"), ("warp", 2, "warp"), ("zero:stage=1", 2, "zero"),
     ("co2:tau=8", 1, "--ranks"), ("plain:tau=8", 2, "tau"), ("co2:inner=2", 4, "inner"),
     ("plain:order=reverse", 1, "this arm has 1; give --ranks 3"), ("plain:order=reverse", 2, "order=reseed"),
     ("fusion:r=0.5", 2, "r"), ("fusion:cuts=equal", 2, "give r alone"), ("fusion:r=4", 1, "--ranks")],
)  # fmt: skip
def test_arms_that_cannot_be_trained_are_refused_beforehand(text: str, ranks: int, part: str) -> None:
    with pytest.raises(DensingError, match=part):
        read_arms([text], ranks)


def test_a_measurement_is_made_again_from_its_record(tmp_path: Path) -> None:
    losses = simulated_ladder(tau=0.8, noise=0.003, common=0.003, spread=0.005, seeds=2)
    folder = write_ladder(tmp_path / "ladder", losses, {"plain": "plain", "arm": "local-sgd:tau=8"})
    options = ["ladder", "gain", str(folder), "--json"]
    assert CliRunner().invoke(app, options, catch_exceptions=False).exit_code == 0
    command = ["techniques", "validate", "--measure", str(folder), "--json"]
    rows = printed(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert {row["claim"] for row in rows} == {
        f"{name} of local-sgd:tau=8" for name in ("density ratio", "token ratio", "bytes that a rank sends")
    }
    assert {(row["verdict"], row["grade"]) for row in rows} == {("agrees", "own measurement")}
    # A loss that is another one, and runs that are gone.
    (file, *_) = sorted((folder / "models").glob("local*/densing.json"))
    about = json.loads(file.read_text())
    about["loss"]["validation_nats_per_token"] *= 1.1
    file.write_text(json.dumps(about))
    verdicts = {row.claim.partition(" of")[0]: (row.verdict, row.note) for row in check_record(folder / "gain.json")}
    assert verdicts["token ratio"][0] == "differs" and "another digest" in verdicts["token ratio"][1]
    assert verdicts["bytes that a rank sends"][0] == "agrees"
    shutil.rmtree(folder / "models")
    assert {row.verdict for row in check_record(folder)} == {"not answerable"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "gain"}', '{"spec": 1, "digest": "", "versions": {}, "figures": []}']
)
def test_a_record_that_is_none_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "gain.json").write_text(text)
    with pytest.raises((ArtefactError, InputError), match=r"gain\.json"):
        check_record(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        check_record(tmp_path / "elsewhere.json")


def test_a_record_of_another_schema_is_refused(ladder: Path, tmp_path: Path) -> None:
    record = plain(ladder_gain(ladder).record())
    (tmp_path / "gain.json").write_text(json.dumps({**record, "schema": 99}))
    with pytest.raises(ArtefactError, match="schema 99"):
        check_record(tmp_path)


def test_records_that_claims_read_are_records() -> None:
    """Shipped with the techniques, which cannot know the hall's type: both wings' checks hold of them here."""
    files = sorted(RECORDS.glob("*.json"))
    assert [file.stem for file in files] == ["dct-refresh", "less-to-send", "rounds", "tuned"]
    for file in files:
        frame = gain_table(file)
        # Four sizes and four budgets of three seeds; of rounds four seeds, and one of two sizes; tuned: three, of two.
        pairs = {"rounds": 72, "tuned": 24}.get(file.stem, 48)
        assert frame["pairs"].eq(pairs).all() and frame["no_loss"].isin(["yes", "no", "not decided"]).all()
    assert recorded("dct-refresh", "dct:eta=0.99").value in ("no loss", "loss", "not decided")


def test_tuned_arms_stand_beside_untuned_ones_of_the_records_that_exist(ladder: Path) -> None:
    gains, shipped = ladder_gain(ladder), shipped_gains(["local-sgd"]).set_index("record")["token_ratio"]
    (cells,) = [row for row in tuned_listing(gains).cells() if row[0] == "local-sgd:tau=8"]
    own = gains.arms[0].tokens.ratio
    assert own is not None
    # This ladder is not tuned: the tuned arm is the shipped record's.
    assert cells[2:4] == ["8", "tuned"] and cells[5] == "this ladder" and cells[4].startswith(f"{own:.3f} (")
    of_record = {row[0]: row for row in tuned_listing(RECORDS / "tuned.json").cells()}
    assert of_record["local-sgd:tau=8"][4].startswith(f"{shipped['rounds']:.3f} (")
    # What was measured in one way alone stands there, too.
    assert of_record["slowmo:tau=8"][1:4] == ["–"] * 3 and of_record["diloco:tau=8"][4:] == ["–"] * 2
    assert "at once: rounds" in tuned_listing(RECORDS / "tuned.json").title
    # No arm in common with a tuned ladder, or another baseline: nothing to hold side by side.
    assert tuned_listing(RECORDS / "less-to-send.json") is tuned_listing(RECORDS / "dct-refresh.json") is None


def test_every_measured_gain_is_shown_with_its_technique() -> None:
    """In list, show, compare and plan: the figures of the shipped records, tuned arms first."""
    gains = shipped_gains()
    assert {"co2", "diloco", "local-sgd", "slowmo", "dct", "topk", "fedft", "spafl", "fusion"} <= set(
        gains["technique"]
    )
    arms = json.loads((RECORDS / "tuned.json").read_text(encoding="utf-8"))["figures"]
    tuned = gains[gains["record"].eq("tuned")].set_index("arm")
    known = {row["arm"]: row["token_ratio"] for row in arms}
    # A length of plain training tells the law; it is no technique.
    assert known.pop("plain:tokens=0.25") > 0
    assert known == tuned["token_ratio"].to_dict()
    here = ["--model", "llama-8b", "--cluster", "a100x8-tcp"]

    def told(*words: str) -> list[dict[str, object]]:
        data = printed(CliRunner().invoke(app, ["techniques", *words, "--json"], catch_exceptions=False).stdout)
        rows = data if isinstance(data, list) else [data]
        return [each for row in rows for each in row["measured"]]

    ours = [(row["arm"], row["record"]) for row in told("show", "co2")]
    assert ours == [("co2:tau=8", "tuned"), ("co2:tau=8", "rounds")]
    assert len(told("list")) == len(gains) == len(told("plan", *here))
    assert {row["technique"] for row in told("compare", *here, "--techniques", "ddp,co2,diloco")} == {"co2", "diloco"}
    shown = CliRunner().invoke(app, ["techniques", "show", "diloco"], catch_exceptions=False).stdout
    ratio = tuned.loc["diloco:tau=8", "token_ratio"]
    assert f"{ratio:.3f}" in shown and "measured on ladders" not in shown
    assert "measured on ladders: none" in CliRunner().invoke(app, ["techniques", "show", "zero1"]).stdout
