"""A trained network: its posterior, tuned, saved and asked, by tensors and by arrays."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescope as bs


def trained(x: Tensor, y: Tensor) -> nn.Sequential:
    """A network by the user's own loop."""
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(50):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(network(x), y))
        optimizer.step()
    return network


def main() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, generator=source)
    noisy = x + 0.7 * torch.randn(150, 2, generator=source)
    y = (noisy[:, 0] > 0).long() + (noisy[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x[:90], y[:90]), batch_size=40)
    q = bs.laplace(trained(x[:90], y[:90]), loader, likelihood="categorical", structure="kfac")
    tuned = bs.tune_prior(q, method="validation", data=(x[90:], y[90:]))
    p = tuned.predict(x[:5])
    probs: Tensor = p.probs
    low, high = p.interval(0.9, of="mean")
    print(probs.sum(dim=1), (high - low).amax(), p.epistemic.sqrt().mean().item(), q.log_evidence().item())
    arrays: np.ndarray = tuned.predict(x[:5].numpy()).mean
    print(bs.metrics.nll(arrays, y[:5].numpy()), np.abs(arrays - probs.numpy()).max())
    draws = tuned.sample_functions(x[:5], 3, generator=0)
    print(draws.shape, tuned.sample(2, generator=1).mean(dim=0)[:3].tolist())
    with TemporaryDirectory() as folder:
        again: bs.GaussianPosterior = bs.load(tuned.save(Path(folder) / "network.bayes"))
    print(again.precision.logdet().item(), again.predict(x[:5], method="sampled", samples=20, generator=0).probs[0])
    point = bs.fit_map(nn.Linear(2, 1), (x, x[:, :1]), likelihood="gaussian", epochs=3, progress=False)
    print(point.trace["loss"][-1], point.predict(x[:2]).mean.flatten().tolist())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
