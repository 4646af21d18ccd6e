"""Networks: known layers are described, others take the caller's module, which stays as it is."""

from __future__ import annotations

import copy
import sys
from functools import reduce

import numpy as np
import pytest
import torch
from torch import nn

import bayescope as bs
from bayescope import storage
from bayescope.errors import InputTypeError
from bayescope.storage import LAYERS, MalformedError, ModelError, Reader
from tests.storage.saved import Residual, answers, data, posterior, seeded

SMALL: dict[str, tuple[object, ...]] = {
    "Linear": (3, 2), "Bilinear": (2, 3, 2), "Embedding": (5, 3, 0), "EmbeddingBag": (5, 3), "PReLU": (2,),
    "Conv1d": (2, 4, 3), "Conv2d": (2, 4, (3, 1), 2, 1), "Conv3d": (1, 2, 2), "ConvTranspose1d": (2, 2, 3),
    "ConvTranspose2d": (2, 2, 3), "ConvTranspose3d": (2, 2, 3), "BatchNorm1d": (3,), "BatchNorm2d": (3,),
    "BatchNorm3d": (3,), "InstanceNorm1d": (3,), "InstanceNorm2d": (3,), "InstanceNorm3d": (3,), "LayerNorm": ((3,),),
    "RMSNorm": ((3,),), "GroupNorm": (2, 4), "LocalResponseNorm": (2,), "Threshold": (0.1, 2.0), "LSTM": (3, 4, 2),
    "RNN": (3, 4), "GRU": (3, 4), "Unflatten": (1, (2, 3)), "PixelShuffle": (2,), "PixelUnshuffle": (2,),
    "ChannelShuffle": (2,), "Unfold": (2,), "Fold": (4, 2), "LPPool1d": (2, 2), "LPPool2d": (2, 2),
    "LinearVariational": (3, 2), "Conv1dVariational": (2, 2, 3), "Conv2dVariational": (2, 2, 3),
    "Conv3dVariational": (1, 2, 2), "EmbeddingVariational": (4, 2, 1), "Pairwise": (nn.Identity(),),
    "Rewards": (nn.Identity(),),
}  # fmt: skip


def layer(name: str) -> nn.Module:
    arguments = SMALL.get(name)
    if arguments is None:
        one = ("Pool", "Pad")
        arguments = ((1, 1.5) if name.startswith("Constant") else (2,)) if any(word in name for word in one) else ()
    return seeded(lambda: LAYERS[name].type(*arguments))


@pytest.mark.parametrize("name", [name for name in LAYERS if hasattr(nn, name) or name in SMALL])
def test_each_layer_comes_back(name, tmp_path):
    made = layer(name).train(name != "Linear")
    back = storage.load(storage.save(made, tmp_path / "layer.bayes"))
    assert type(back) is type(made)
    assert repr(back) == repr(made)
    assert back.training is made.training
    ours = {key: value for key, value in vars(made).items() if not key.startswith("_")}
    assert {key: value for key, value in vars(back).items() if not key.startswith("_")} == ours
    for (key, tensor), (other, restored) in zip(made.state_dict().items(), back.state_dict().items(), strict=True):
        assert key == other
        assert torch.equal(tensor, restored)


def test_networks_in_networks_compute_the_same(tmp_path):
    made = seeded(
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
    ).eval()
    made[3].weight.requires_grad_(False)
    back = storage.load(storage.save(made, tmp_path / "net.bayes"))
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(back(x), made(x))
    assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in made.parameters()]
    lstm = layer("LSTM")
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(storage.load(storage.save(lstm, tmp_path / "lstm.bayes"))(x)[0], lstm(x)[0])


def test_layers_and_weights_that_are_shared_stay_shared(tmp_path):
    twice = seeded(lambda: nn.Linear(3, 3))
    tied = seeded(lambda: nn.Linear(3, 3))
    tied.weight = twice.weight
    made = nn.Sequential(twice, nn.Tanh(), twice, tied)
    back = storage.load(storage.save(made, tmp_path / "net.bayes"))
    assert back[0] is back[2]
    assert back[3].weight is back[0].weight
    assert len(list(back.parameters())) == len(list(made.parameters())) == 3
    assert bs.storage.read_manifest(tmp_path / "net.bayes").tensors.keys() == {
        "Sequential.0.weight", "Sequential.0.bias", "Sequential.3.bias",
    }  # fmt: skip


def test_an_attribute_that_was_changed_is_described(tmp_path):
    made = nn.Sequential(nn.Dropout(0.1), nn.LeakyReLU())
    made[0].p, made[1].negative_slope = 0.4, 0.3
    back = storage.load(storage.save(made, tmp_path / "net.bayes"))
    assert (back[0].p, back[1].negative_slope) == (0.4, 0.3)


def custom(tmp_path, module=None):
    return storage.save(seeded(Residual) if module is None else module, tmp_path / "net.bayes")


def test_a_network_of_ones_own_class_takes_the_module(tmp_path):
    q = posterior("custom network")
    path = q.save(tmp_path / "q.bayes")
    with pytest.raises(ModelError, match=r"expected a module of the architecture of Residual, whose code is not in"):
        bs.load(path)
    given = seeded(Residual)
    with torch.no_grad():
        given.first.weight.zero_()
    before = copy.deepcopy(given.state_dict())
    loaded = bs.load(path, model=given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    assert loaded.model is not given
    np.testing.assert_array_equal(answers(loaded)[0], answers(q)[0])
    loaded.save(tmp_path / "again.bayes")
    assert (tmp_path / "again.bayes").read_bytes() == path.read_bytes()


class Named(Residual):
    """Another name for a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Residual(3), r"expected 'second.weight' of shape \(2, 3\) and type torch.float32, got \(3, 3\)"),
        (lambda: Residual().double(), "got .* and torch.float64. Give a module of the architecture"),
        (Named, r"got 'third\.\w+', which the module has and the file has not"),
        (lambda: nn.Linear(3, 2), "which the file has and the module has not"),
    ],
)
def test_another_module_is_refused(make, match, tmp_path):
    path = custom(tmp_path)
    with pytest.raises(ModelError, match=match):
        storage.load(path, model=seeded(make))


def test_ties_have_to_be_the_same(tmp_path):
    tied = seeded(Residual)
    tied.second = seeded(lambda: nn.Linear(3, 3))
    tied.second.weight = tied.first.weight
    path = custom(tmp_path, tied)
    loose = seeded(Residual)
    loose.second = seeded(lambda: nn.Linear(3, 3))
    with pytest.raises(ModelError, match="whose parameters are shared as they were saved"):
        storage.load(path, model=loose)
    back = storage.load(path, model=tied)
    assert back.second.weight is back.first.weight


def test_a_module_beside_a_description_has_to_fit_it(tmp_path):
    q = posterior("laplace, kfac, float32")
    path = q.save(tmp_path / "q.bayes")
    same = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    np.testing.assert_array_equal(answers(bs.load(path, model=same))[0], answers(q)[0])
    with pytest.raises(ModelError, match=r"expected '0\.weight' of shape"):
        bs.load(path, model=seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))))


def test_a_module_that_is_nested_too_deeply_is_told(tmp_path):
    deep = reduce(lambda inside, _: nn.Sequential(inside), range(sys.getrecursionlimit()), seeded(Residual))
    with pytest.raises(ModelError, match="nested less deeply"):
        bs.load(custom(tmp_path), model=deep)


def test_models_are_modules_and_there_is_something_to_put_in(tmp_path):
    path = storage.save([1], tmp_path / "list.bayes")
    with pytest.raises(InputTypeError, match=r"model: expected a torch\.nn\.Module, got type"):
        storage.load(path, model=nn.Linear)
    with pytest.raises(ModelError, match=r"got one that has none\. Leave model out"):
        storage.load(path, model=seeded(lambda: nn.Linear(1, 1)))


def test_dropout_that_was_put_in_is_put_in_again(tmp_path):
    for make, model in ((lambda: seeded(Residual), seeded(Residual)), (None, None)):
        if make is None:
            q = posterior("dropout")
        else:
            q = bs.mc_dropout(make(), data(), likelihood="categorical", rate=0.3, epochs=1, progress=False)
        loaded = bs.load(q.save(tmp_path / "q.bayes"), model=model)
        x = data()[0][:4]
        np.testing.assert_array_equal(loaded.predict(x, generator=3).variance, q.predict(x, generator=3).variance)
        assert float(np.asarray(loaded.predict(x, generator=3).variance).max()) > 0


def test_hooks_of_ones_own_are_not_described(tmp_path):
    made = nn.Sequential(nn.Tanh())
    made[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="architecture of Sequential"):
        storage.load(storage.save(made, tmp_path / "net.bayes"))


def sizes(**options):
    return {"dict": [list(pair) for pair in options.items()]}


@pytest.mark.parametrize(
    ("node", "match"),
    [
        ({"Popen": {"": [{"dict": []}, True, []]}}, "the class 'Popen' is not known"),
        ({"LSTM": {"": [sizes(input_size=1, hidden_size=1, num_layers=10**9), True, []]}}, "layers"),
        ({"Linear": {"": [sizes(in_features=2, out_features=2, device="cpu"), True, []]}}, "takes memory of its own"),
        ({"Tanh": {"": [sizes(), True, []], "0": 3}}, "a layer in a layer is malformed"),
        ({"Tanh": {"": [sizes(), True, ["input_dropout"]]}}, "a hook is not known"),
        ({"Tanh": {"": [sizes(), True, []], "weight": {"tensor": ["t", None]}}}, "a layer in a layer is malformed"),
        ({"Linear": {"": [sizes(in_features=10**9, out_features=10**9), True, []]}}, "other tensors"),
    ],
)
def test_descriptions_are_checked(node, match):
    with pytest.raises((MalformedError, ValueError), match=match):
        Reader({"t": torch.ones(1)}).value(node)


def test_layers_that_are_shared_without_end_are_refused():
    reader = Reader({})

    def add(*children: int) -> None:
        held = {str(name): {"ref": place} for name, place in enumerate(children)}
        reader.add({"Sequential": {"": [sizes(), True, []], **held}})

    def fold() -> None:
        for level in range(0, 42, 3):  # two that hold the one before, and one that holds both
            add(level)
            add(level)
            add(level + 1, level + 2)

    add()
    with pytest.raises(MalformedError, match="more memory than a file of its size does"):
        fold()
    assert len(reader.objects) > 20
