"""Scores of several models on the same rows: who is better, by how much, and when the rows do not show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bayescope import metrics
from bayescope.report import paired
from bayescope.report.judged import Judged, Predictions, RowNames
from bayescope.report.paired import JudgedModel, PairedScore, headline, paired_scores, said

CLASSES = ("a", "b", "c")


def rows_of(y, classes=()):
    names = RowNames(np.arange(len(y)).astype(object), "row", "")
    return Judged(None, y, names, (), (), y, tuple(classes), "y")


def model(name, mean, log_prob, *, crps=None, pit=None, outcomes="classes"):
    zero, rows = np.zeros_like(mean), len(mean)
    pit_ends = np.empty((rows, 0)) if pit is None else np.stack([pit, pit], axis=1)
    interval = np.empty((rows, 0)) if pit is None else np.concatenate([mean - 2, mean + 2], axis=1)
    said_of_rows = Predictions(mean, zero, zero + 1, log_prob, pit_ends, interval, zero[:, 0] if crps is None else crps)
    return JudgedModel(name, (), "held out", said_of_rows, outcomes)


def of_probs(name, probs, y):
    return model(name, probs, np.log(probs[np.arange(len(y)), y]))


def classified(rows=223, seed=0):
    """Truths, and probabilities that are right."""
    source = np.random.default_rng(seed)
    probs = source.dirichlet(np.ones(3), size=rows)
    return probs, (probs.cumsum(1) < source.random((rows, 1))).sum(1)


def blurred(probs, share):
    return (1 - share) * probs + share / probs.shape[1]


def test_scores_are_those_of_the_metrics_and_differences_are_between_them():
    probs, y = classified()
    tables = {"right": probs, "blurred": blurred(probs, 0.5)}
    found = {s.name: s for s in paired_scores([of_probs(n, p, y) for n, p in tables.items()], rows_of(y, CLASSES), 0)}
    expected = {
        "nll": metrics.nll, "brier": metrics.brier, "ece": metrics.ece, "auroc": metrics.auroc,
        "accuracy": lambda p, truth: (p.argmax(1) == truth).mean(),
    }  # fmt: skip
    assert list(found) == ["nll", "brier", "ece", "auroc", "accuracy"]
    for name, measure in expected.items():
        values = np.array([measure(p, y) for p in tables.values()])
        np.testing.assert_allclose([score.value for score in found[name].scores], values, atol=1e-12)
        np.testing.assert_allclose(found[name].differences[:, 0], values - values[found[name].best], atol=1e-12)
        assert (found[name].differences[found[name].best] == 0).all()
    assert "15 bins" in found["ece"].label


def test_resamples_have_the_same_rows_for_all_models():
    """The interval of a mean's difference is that of the mean of the rows' differences, however noisy the rows are."""
    source = np.random.default_rng(1)
    rows = 301
    hard, gap = source.normal(0, 10, rows), source.normal(0.1, 0.2, rows)
    both = [model(n, np.zeros((rows, 1)), -loss, crps=loss, pit=source.random(rows), outcomes="numbers")
            for n, loss in (("one", hard), ("other", hard + gap))]  # fmt: skip
    nll = next(s for s in paired_scores(both, rows_of(source.normal(size=rows)), 0) if s.name == "nll")
    _, low, high = nll.differences[1]
    half = 1.96 * gap.std() / np.sqrt(rows)
    np.testing.assert_allclose([low, high], [gap.mean() - half, gap.mean() + half], atol=0.25 * half)
    assert nll.won
    own = nll.scores[0]
    assert own.high - own.low > 20 * (high - low)


def test_a_winner_is_named_as_often_as_chance_allows_and_no_oftener():
    won = []
    for seed in range(100):
        source = np.random.default_rng(seed)
        losses = source.normal(1, 0.3, (2, 60)) + source.normal(0, 1, 60)
        both = [model(str(k), np.zeros((60, 1)), -loss, crps=loss, pit=source.random(60), outcomes="numbers")
                for k, loss in enumerate(losses)]  # fmt: skip
        won.append(paired_scores(both, rows_of(np.zeros(60) + source.normal(size=60)), seed)[0].won)
    assert 0.0 < np.mean(won) <= 0.12  # 0.05, and 0.022 its standard error


def test_the_order_of_models_changes_no_answer():
    order = (2, 0, 1)
    probs, y = classified()
    tables = [probs, blurred(probs, 0.6), blurred(probs, 0.02)]
    models = [of_probs(str(k), tables[k], y) for k in order]
    in_order = paired_scores([of_probs(str(k), p, y) for k, p in enumerate(tables)], rows_of(y, CLASSES), 0)
    for score, straight in zip(paired_scores(models, rows_of(y, CLASSES), 0), in_order, strict=True):
        np.testing.assert_allclose(score.differences, straight.differences[list(order)], atol=1e-12)
        best = straight.scores[order[score.best]].value
        assert best == pytest.approx(straight.scores[straight.best].value)  # blurring changes no order of rows


def test_models_that_say_the_same_are_not_told_apart():
    probs, y = classified()
    scores = paired_scores([of_probs("one", probs, y), of_probs("other", probs, y)], rows_of(y, CLASSES), 0)
    for score in scores:
        assert not score.won
        assert (score.differences == 0).all()
    assert headline(scores[0], ["one", "other"], 223) == "These 223 rows do not show which model predicts better"
    assert "show no clear difference between one and other (difference 0" in said(scores[0], ["one", "other"])


def test_the_sentence_says_who_is_better_and_from_whom_it_is_not_told():
    probs, y = classified()
    names = ["right", "flat", "near"]
    models = [of_probs(n, p, y) for n, p in zip(names, [probs, blurred(probs, 0.6), blurred(probs, 0.02)], strict=True)]
    scores = {score.name: score for score in paired_scores(models, rows_of(y, CLASSES), 0)}
    first = headline(scores["nll"], names, 223)
    assert first == "right is ahead, but these 223 rows show no clear difference from near"
    sentence = said(scores["nll"], names)
    assert sentence.startswith("NLL, nats per row: right is better than flat by 0.")
    assert "; these rows show no clear difference from near (difference 0.00" in sentence
    pair = paired_scores(models[:2], rows_of(y, CLASSES), 0)[0]
    assert pair.won
    assert headline(pair, names[:2], 223) == "right predicts these 223 rows better than flat"


def test_of_larger_is_better_the_sentence_has_no_sign():
    score = PairedScore("accuracy", (None, None), 1, np.array([[-0.08, -0.12, -0.03], [0, 0, 0]]))
    assert said(score, ["low", "high"]) == "Accuracy: high is better than low by 8.0 points, 95 % interval 3.0 to 12.0."
    assert score.difference(0) == ("−8.0 points", "−12.0 to −3.0")


def test_the_nll_is_left_out_where_it_has_no_common_unit_or_no_end():
    probs, y = classified()
    counts = replace(of_probs("counts", probs, y), outcomes="whole numbers")
    endless = of_probs("endless", np.eye(3)[y][:, [1, 2, 0]] * 0.9 + 0.1 / 3, y)
    endless = replace(
        endless, predicted=replace(endless.predicted, log_prob=np.where(np.arange(len(y)) == 5, -np.inf, -1.0))
    )
    for other in (counts, endless):
        names = [score.name for score in paired_scores([of_probs("one", probs, y), other], rows_of(y, CLASSES), 0)]
        assert names[0] == "brier"
        assert "nll" not in names


def test_coverage_is_shown_and_has_no_winner():
    source = np.random.default_rng(3)
    y = source.normal(size=400)
    pits = {"right": source.random(400), "narrow": np.where(source.random(400) < 0.3, 0.999, 0.5)}
    models = [model(n, np.zeros((400, 1)), -(y**2), crps=np.abs(y), pit=p, outcomes="numbers") for n, p in pits.items()]
    coverage = paired_scores(models, rows_of(y), 0)[-1]
    assert (coverage.name, coverage.best, bool(coverage.behind[1]), coverage.won) == ("coverage", 0, True, False)
    assert said(coverage, list(pits)).startswith("Coverage of 95 % intervals: 9")


def test_rows_differ_by_the_largest_distance_of_two_models():
    y = np.array([0, 1])
    tables = ([[0.9, 0.1, 0], [0.2, 0.8, 0]], [[0.9, 0.1, 0], [0.1, 0.8, 0.1]], [[0.5, 0.1, 0.4], [0.2, 0.8, 0]])
    models = [model(str(k), np.array(table), np.zeros(2)) for k, table in enumerate(tables)]
    np.testing.assert_allclose(paired.apart(models, rows_of(y, CLASSES)), [0.4, 0.1])
    numbers = [
        model(str(k), np.array(means)[:, None], np.zeros(2), pit=np.ones(2)) for k, means in enumerate(([1, 5], [4, 5]))
    ]
    np.testing.assert_allclose(paired.apart(numbers, rows_of(y.astype(float))), [3, 0])
