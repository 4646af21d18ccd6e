"""Search leads to the page that answers: by words that the page does not use, and to guides before generated pages.

`WORDS` is the one list of such words. They are hidden: the search index has them, no page shows them.
"""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils.templates import TemplateContext

# For each page the words that should find it first, whatever other pages say. Order and phrases do not count. A word is
# found by its beginning too, so that "outliers" is enough for "outlier". A word that belongs to two pages finds both.
WORDS = {
    "cases/index.md": "case study studies worked examples real business",
    "cases/credit_risk.md": "credit loans default bank scoring costs",
    "cases/clinical_risk.md": "clinical medicine medical patients diabetes",
    "cases/bike_demand.md": "demand forecast inventory newsvendor staffing bikes",
    "cases/digits_that_abstain.md": "reject option image classifier images digits",
    "coming_from/interpretml.md": "InterpretML EBM explainable boosting glassbox",
    "coming_from/laplace_torch.md": "laplace-torch laplace-redux",
    "coming_from/mapie.md": "MAPIE",
    "coming_from/ngboost.md": "NGBoost natural gradient boosting",
    "coming_from/pymc_and_bambi.md": "PyMC Bambi brms formula",
    "coming_from/pyro_and_numpyro.md": "Pyro NumPyro SVI AutoGuide",
    "coming_from/scikit_learn.md": "BayesianRidge ARDRegression GaussianProcessRegressor CalibratedClassifierCV",
    "course/index.md": "course lectures lecturer teaching class students exercises lessons notebooks",
    "how_to/additive.md": (
        "interpretable interpretability explanations explainable GAM SHAP partial dependence "
        "feature importances monotonic interactions"
    ),
    "how_to/outcomes.md": (
        "counts Poisson negative binomial exposure GLM generalised generalized outliers robust Student-t survival "
        "censored lifetimes ordinal zero-inflated Tweedie proportions custom likelihood"
    ),
    "how_to/any_table.md": (
        "CSV TSV Excel xlsx spreadsheets encoding separator delimiter decimal comma dates "
        "categorical categories one-hot leakage cleaning"
    ),
    "how_to/bayesian_optimisation.md": "optimization BoTorch Thompson acquisition expected improvement preferences",
    "how_to/which_posterior.md": (
        "which method recommended horseshoe sparse selection ARD random effects mixed hierarchical multilevel prior "
        "regularisation regularization weight decay"
    ),
    "how_to/command_line.md": "command line CLI terminal shell bash",
    "how_to/decisions.md": (
        "uncertainty confidence aleatoric epistemic entropy mutual information abstention abstains rejection "
        "threshold selective costs"
    ),
    "how_to/gpu.md": "GPU CUDA MPS dtype float32 float64",
    "how_to/several_gpus.md": "several multi-process multiple DDP FSDP torchrun data-parallel cluster SLURM",
    "how_to/dropout.md": "MC",
    "how_to/explore.md": "playground demo interactive visualisation visualization",
    "how_to/export.md": "ONNX onnxruntime C++ mobile",
    "how_to/save_and_load.md": "saving loading pickle joblib persistence serialisation serialization checkpoints",
    "gallery.md": "pictures figures plots",
    "how_to/active_learning.md": "active learning labelling labeling annotation query BALD pool-based",
    "how_to/calibration.md": (
        "calibration calibrated reliability diagram ECE Brier temperature overconfidence overconfident Platt scoring"
    ),
    "how_to/fine_tuned_transformer.md": (
        "Hugging Face HuggingFace transformers fine-tuning fine-tuned finetuning BERT LLM language text NLP "
        "pretrained LoRA PEFT adapters"
    ),
    "how_to/guarantee.md": "guarantees conformal prediction sets coverage distribution-free",
    "how_to/missing_values.md": "missing values NaN NA imputation imputer gaps",
    "how_to/out_of_distribution.md": "out of distribution OOD anomaly detection novelty shift drift unknown AUROC",
    "how_to/serve.md": "serving servers deploy deployment production REST API HTTP FastAPI Flask JSON Docker",
    "how_to/regression_intervals.md": (
        "prediction predictive intervals credible confidence error bars standard quantile regressor forest "
        "RandomForestRegressor"
    ),
    "evidence/how_wrong.md": "overfitting overfitted validation diagnostics R-hat Pareto held-out test",
    "how_to/laplace.md": "linearised linearized KFAC Kronecker GGN Hessian Fisher tune",
    "how_to/large_networks.md": "ResNet ViT vision bfloat16 half precision Llama",
    "how_to/many_classes.md": "many classes ImageNet vocabulary extreme segmentation",
    "how_to/large_tables.md": "big data out-of-core streaming larger",
    "how_to/logging.md": "logging verbose messages silent warnings",
    "evidence/benchmarks.md": "benchmarks speed fast accuracy",
    "how_to/network_posteriors.md": "neural BNN variational inference VI backprop SWAG SGLD SGMCMC deep ensembles",
    "how_to/notebooks.md": "Jupyter Colab IPython progress",
    "how_to/trainers.md": "PyTorch Lightning Trainer callbacks token question answering",
    "how_to/pipelines.md": (
        "pipelines GridSearchCV cross-validation cross_val_score ColumnTransformer hyperparameters CRPS partial_fit "
        "online"
    ),
    "evidence/published.md": "papers replication reproduce",
    "how_to/report.md": "HTML card what-if",
    "evidence/scaling.md": "complexity runtime memory",
    "start/density.md": "unnormalised unnormalized Stan NUTS MCMC HMC sampler constraints",
    "start/install.md": (
        "installation installing setup pip conda uv pipx requirements dependencies extras wheel Windows macOS"
    ),
    "start/network.md": "nn.Module PyTorch torch trained post-hoc",
    "start/table.md": (
        "scikit-learn sklearn DataFrames pandas polars tabular quickstart getting started tutorial logistic linear "
        "classifier"
    ),
    "understand/evidence.md": "marginal likelihood evidence Bayes factor Occam model comparison hyperparameters",
    "understand/expectation_propagation.md": "EP moment matching",
    "understand/index.md": "mathematics formulas derivations theory notation",
    "understand/mcmc.md": "Metropolis Hamiltonian Langevin SGHMC effective sample size",
    "understand/predictions.md": "integrals quadrature MacKay softmax bridge",
    "understand/variational_inference.md": "ELBO lower bound KL divergence mean-field",
    "how_to/data.md": "DataLoader datasets sample_weight soft labels graphs GNN Geometric skorch accelerate",
}
# How much a match counts, beside 1 on a page of the guide: a table of measurements that names a function comes after
# the page that explains it. A folder counts for its pages.
WEIGHTS = {
    "architecture.md": 0.2,
    "changelog.md": 0.05,
    "contributing.md": 0.2,
    "gallery/": 0.2,
    "measurements/": 0.05,
    "reference/": 0.5,
}
# The source of an entry of the reference, and of a picture: all of it would find the page that happens to use a word.
CODE = re.compile(r'<details class="mkdocstrings-source"|<div class="language-py highlight"')


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Refuses words for a page that the site does not have."""
    gone = [name for name in WORDS if files.get_file_from_path(name) is None]
    if gone:
        raise PluginError(f"docs/_site/search.py: expected pages of the site, got {gone}. Correct the names in WORDS.")
    return files


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Gives the page its weight, as `search: boost:` in its front matter would."""
    weight = next((weight for start, weight in WEIGHTS.items() if page.file.src_uri.startswith(start)), None)
    if weight is not None:
        page.meta["search"] = {"boost": weight}
    return CODE.sub(r'\g<0> data-search-exclude="true"', html)


@event_priority(-100)  # when the search plugin has added the page to its index
def on_page_context(context: TemplateContext, *, page: Page, config: MkDocsConfig, nav: Navigation) -> TemplateContext:
    """Adds the words of the page to the entry of its title."""
    if page.file.src_uri in WORDS:
        entries = config.plugins["material/search"].search_index.entries
        title = next(entry for entry in entries if entry["location"] == page.url)
        title["tags"] = WORDS[page.file.src_uri].split()
    return context
