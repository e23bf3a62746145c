"""Arms of a sweep over seeds."""

import numpy as np
import pytest

from ark_jax.pipeline.recipe import Outcome
from ark_jax.report.sweep_table import arms_cells, compare_arms

QUESTIONS = [f"q{i}" for i in range(60)]


def outcome(values, questions=QUESTIONS) -> Outcome:
    by_question = dict(zip(questions, map(float, values), strict=True))
    return Outcome("read-1", {"p": {"mean": np.mean(values)}}, {"p": by_question})


def runs(gain: float = 0.1, questions=QUESTIONS) -> dict:
    random = np.random.default_rng(0)
    values = {seed: random.random(60) * 0.5 for seed in (None, 1, 2)}
    by_name = {}
    for seed, of_seed in values.items():
        suffix, changes = (f"-seed{seed}", {"seed": seed}) if seed else ("", {})
        by_name[f"base{suffix}"] = (changes, outcome(of_seed))
        noise = random.normal(0, 0.05, 60)
        by_name[f"arm{suffix}"] = ({"x": 1} | changes, outcome(of_seed + gain + noise, questions))
    return by_name


def test_an_arm_is_compared_with_the_base_over_its_seeds():
    base, arm = compare_arms(runs(), ["p"])
    assert (base["arm"], base["seeds"]) == ("base", 3) and (arm["arm"], arm["seeds"]) == ("arm", 3)
    assert "against_base" not in base["values"]["p"]
    against = arm["values"]["p"]["against_base"]
    assert against["difference"] == pytest.approx(0.1, abs=0.02)
    assert against["low"] > 0.07 and against["p_holm"] < 0.001


def test_the_table_of_arms_shows_the_difference_interval_and_p_value():
    head, _, line = arms_cells(compare_arms(runs(), ["p"]), {"p": "p"})
    assert head == ["arm", "seeds", "p"] and line[0] == "arm"
    assert line[2] == "0.365: +0.094 [0.085, 0.102], p < 0.001"


def test_an_arm_without_a_difference_is_not_significant():
    _, arm = compare_arms(runs(0.0), ["p"])
    assert arm["values"]["p"]["against_base"]["p_holm"] > 0.01


def test_p_values_of_several_arms_are_corrected():
    first_arm = runs()
    second_arm = {f"other{name}": ({**c, "y": 2}, o) for name, (c, o) in runs(0.005).items()}
    rows = compare_arms(first_arm | second_arm, ["p"])
    values = [row["values"]["p"]["against_base"] for row in rows[1:]]
    assert len(values) == 3 and all(value["p_holm"] >= value["p"] for value in values)


def test_runs_on_different_questions_are_not_compared():
    rows = compare_arms(runs(questions=[f"other{i}" for i in range(60)]), ["p"])
    assert rows[1]["values"] == {} and arms_cells(rows, {"p": "p"})[2][2] == "–"


def test_a_single_seed_is_not_an_arm():
    seedless = {name: run for name, run in runs().items() if "seed" not in name}
    assert compare_arms(seedless, ["p"]) == []
