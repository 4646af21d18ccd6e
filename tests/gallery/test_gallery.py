"""The gallery as a whole: its register, its files, its index."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.image import imread

from bayescope import gallery
from bayescope.errors import InputError, OptionError
from bayescope.gallery import PICTURES, draw, draw_all

QUICK = "sigmoid-against-probit"
OTHER = "kappa-against-quadrature"


NAMES = """
predictive-surfaces many-borders laplace-in-four-panels laplace-in-one-dimension evidence-by-laplace
laplace-error-against-n kl-directions one-observation elbo-and-kl evidence-over-basis-functions sigmoid-against-probit
kappa-against-quadrature network-banana network-underfitting network-evidence network-online-evidence
network-structures network-segmentation network-moons network-sine network-variational-training additive-effects
additive-local-explanations
"""


def test_register_has_the_twenty_three_pictures_in_their_order():
    assert list(PICTURES) == NAMES.split()
    assert all(name == picture.name for name, picture in PICTURES.items())


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_captions_are_one_sentence_and_name_their_source(picture):
    assert picture.caption.endswith(".")
    assert ". " not in picture.caption
    assert any(letter.isdigit() for letter in picture.source), "a year"


def test_draws_what_is_asked_for_and_nothing_else(tmp_path):
    assert draw_all(tmp_path / "new", only=[OTHER, QUICK]) == [
        tmp_path / "new" / f"{name}.png" for name in (QUICK, OTHER)
    ]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["index.md", f"{OTHER}.png", f"{QUICK}.png"]
    assert imread(tmp_path / "new" / f"{QUICK}.png").shape[1] == 1200


def test_index_lists_what_lies_in_the_folder(tmp_path):
    draw_all(tmp_path, only=[QUICK])
    draw_all(tmp_path, only=[OTHER])
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    for name in (QUICK, OTHER):
        assert f"({name}.png)" in index
        assert PICTURES[name].caption in index
        assert PICTURES[name].source in index
    assert index.count("![") == 2


def test_unknown_names_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(
        OptionError, match=r"only: expected one of 'predictive-surfaces'.*got 'sigmoid-agianst-probit'.*Did you mean"
    ):
        draw_all(tmp_path / "new", only=[QUICK, "sigmoid-agianst-probit"])
    assert not (tmp_path / "new").exists(), "nothing is drawn"
    with pytest.raises(OptionError, match="picture: expected one of"):
        draw("nothing")


def test_progress_is_told_before_each_picture(tmp_path):
    told = []
    draw_all(tmp_path, only=[OTHER, QUICK], progress=lambda *step: told.append(step))
    assert told == [(0, 2, QUICK), (1, 2, OTHER)]


def test_a_picture_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail():
        raise InputError("no")

    monkeypatch.setitem(gallery.PICTURES, OTHER, dataclasses.replace(PICTURES[OTHER], draw=fail))
    with pytest.raises(InputError, match="no"):
        draw_all(tmp_path, only=[OTHER])
    assert list(tmp_path.iterdir()) == []


def test_pictures_are_the_same_each_time(tmp_path):
    first, second = (draw_all(tmp_path / run, only=[QUICK, "one-observation"]) for run in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_house_style_does_not_leak():
    import matplotlib as mpl

    before = mpl.rcParams.copy()
    draw(QUICK)
    assert mpl.rcParams == before
