"""Allrounder trains image classifiers that are accurate and robust under several norms, and evaluates them.

Public names are loaded when they are first used, so `import allrounder` does not import torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# fmt: off
# isort: off
if TYPE_CHECKING:
    from allrounder.attacks import (
        ATTACKS as ATTACKS, Apgd as Apgd, ApgdTrain as ApgdTrain, Attack as Attack, AutoAttack as AutoAttack,
        Bpda as Bpda, Cascade as Cascade, Curriculum as Curriculum, CustomLoss as CustomLoss, Cw as Cw,
        EarlyStopPgd as EarlyStopPgd,
        Fab as Fab, Mim as Mim, Msd as Msd, Pgd as Pgd, RandomOf as RandomOf, Restarts as Restarts,
        Square as Square, Transfer as Transfer, WorstOf as WorstOf, craft as craft,
    )
    from allrounder.config.schedules import (
        Constant as Constant, Cosine as Cosine, Cyclic as Cyclic, EmaWarmup as EmaWarmup, Linear as Linear,
        Step as Step, TimeConstant as TimeConstant,
    )
    from allrounder.config.time import Clock as Clock, Time as Time
    from allrounder.data import (
        DATASETS as DATASETS, Cifar10 as Cifar10, Cifar100 as Cifar100, Embedded as Embedded,
        FashionMnist as FashionMnist, Folder as Folder, ImageNet as ImageNet, Mnist as Mnist, Npz as Npz,
        Svhn as Svhn, TinyImageNet as TinyImageNet,
    )
    from allrounder.data.augment import (
        Chain as Chain, ColorJitter as ColorJitter, CropFlip as CropFlip, CutMix as CutMix, Cutout as Cutout,
        Mixup as Mixup, NoAugment as NoAugment, ResizedCrop as ResizedCrop,
    )
    from allrounder.data.base import Data as Data, Split as Split
    from allrounder.data.extra import Extra as Extra
    from allrounder.data.inputs.coerce import as_data as as_data
    from allrounder.distributed import World as World
    from allrounder.errors import (
        AllrounderError as AllrounderError, DataError as DataError, Diverged as Diverged,
        InputError as InputError, Interrupted as Interrupted, MissingDataError as MissingDataError,
        PreflightError as PreflightError, RecipeError as RecipeError, RunError as RunError,
        StorageError as StorageError, ThreatError as ThreatError, WorldError as WorldError,
    )
    from allrounder.evaluation.evaluate import EvalOptions as EvalOptions, evaluate as evaluate
    from allrounder.evaluation.preflight import Diagnosis as Diagnosis, doctor as doctor
    from allrounder.evaluation.probes import Probe as Probe, suite as suite
    from allrounder.experiments.collect import read_results as read_results
    from allrounder.experiments.dial import Dial as Dial, dial as dial
    from allrounder.experiments.ensemble import FittedEnsemble as FittedEnsemble, fit_ensemble as fit_ensemble
    from allrounder.experiments.export import Exported as Exported, export as export
    from allrounder.experiments.theory import Theory as Theory, measure_theory as measure_theory
    from allrounder.models import MODELS as MODELS
    from allrounder.models.ensemble import Ensemble as Ensemble, OutputMix as OutputMix
    from allrounder.models.logits_of import LogitsOf as LogitsOf
    from allrounder.models.resnet import (
        PreActResNet18 as PreActResNet18, ResNet18 as ResNet18, ResNet34 as ResNet34,
    )
    from allrounder.models.resnet_imagenet import ResNet50 as ResNet50, WideResNet50 as WideResNet50
    from allrounder.models.small_cnn import SmallCnn as SmallCnn
    from allrounder.models.wide_resnet import WideResNet as WideResNet
    from allrounder.nn.gradcam import grad_cam as grad_cam
    from allrounder.nn.mixing import (
        MIXES as MIXES, Chosen as Chosen, Ema as Ema, Fisher as Fisher, MixRule as MixRule, Outer as Outer,
        Uniform as Uniform,
    )
    from allrounder.nn.mixture import mix_weights as mix_weights
    from allrounder.objectives import (
        OBJECTIVES as OBJECTIVES, Adversarial as Adversarial, Average as Average, Eat as Eat, Fat as Fat,
        HalfHalf as HalfHalf, Iat as Iat, LogitPairing as LogitPairing, Mart as Mart, Natural as Natural,
        Objective as Objective, Part as Part, RobustSelfTraining as RobustSelfTraining, Score as Score,
        Taught as Taught, Teacher as Teacher, Trades as Trades,
    )
    from allrounder.optim import (
        UPDATES as UPDATES, Agr as Agr, Awp as Awp,
        CatastrophicOverfittingGuard as CatastrophicOverfittingGuard, Descend as Descend,
        GradientProjection as GradientProjection, ModeCurve as ModeCurve, Update as Update,
    )
    from allrounder.optim.optimizers import Adam as Adam, AdamW as AdamW, Sgd as Sgd
    from allrounder.recipe.compute import Compute as Compute
    from allrounder.recipe.init import FromRun as FromRun, Random as Random, Soup as Soup
    from allrounder.recipe.mix import Exchange as Exchange, Mix as Mix, Shares as Shares
    from allrounder.recipe.pipeline import (
        PIPELINES as PIPELINES, ModeConnectivity as ModeConnectivity, SelfTraining as SelfTraining,
        Stage as Stage, WeightSoup as WeightSoup,
    )
    from allrounder.recipe.recipe import Recipe as Recipe
    from allrounder.recipe.task import Task as Task
    from allrounder.recipe.validation import Validation as Validation
    from allrounder.report.dial import DialPoint as DialPoint, pick_point as pick_point
    from allrounder.report.outcome import Outcome as Outcome
    from allrounder.report.render import render as render
    from allrounder.rng import Rng as Rng
    from allrounder.system.progress import (
        Progress as Progress, ProgressEvent as ProgressEvent, TrainingStatus as TrainingStatus,
    )
    from allrounder.threats.norms import L1 as L1, L2 as L2, Linf as Linf
    from allrounder.threats.threat import AnyOf as AnyOf, Threat as Threat
    from allrounder.training.run import Run as Run, load as load
    from allrounder.training.train import train as train
# fmt: on
# isort: on

_MODULES = {
    # Recipes and training
    "recipe.recipe": "Recipe",
    "recipe.task": "Task",
    "recipe.validation": "Validation",
    "recipe.mix": "Exchange Mix Shares",
    "nn.mixing": "Chosen Ema Fisher MIXES MixRule Outer Uniform",
    "recipe.init": "FromRun Random Soup",
    "recipe.pipeline": "ModeConnectivity PIPELINES SelfTraining Stage WeightSoup",
    "recipe.compute": "Compute",
    "training.train": "train",
    "training.run": "Run load",
    "config.schedules": "Constant Cosine Cyclic EmaWarmup Linear Step TimeConstant",
    "config.time": "Clock Time",
    # Objectives, updates and optimisers
    "objectives": (
        "Adversarial Average Eat Fat HalfHalf Iat LogitPairing Mart Natural OBJECTIVES Objective "
        "Part RobustSelfTraining Score Taught Teacher Trades"
    ),
    "optim": "Agr Awp CatastrophicOverfittingGuard Descend GradientProjection ModeCurve UPDATES Update",
    "optim.optimizers": "Adam AdamW Sgd",
    # Threats and attacks
    "threats.norms": "L1 L2 Linf",
    "threats.threat": "AnyOf Threat",
    "attacks": (
        "ATTACKS Apgd ApgdTrain Attack AutoAttack Bpda Cascade Curriculum CustomLoss Cw EarlyStopPgd Fab Mim "
        "Msd Pgd RandomOf Restarts Square Transfer WorstOf craft"
    ),
    # Evaluation and reports
    "evaluation.evaluate": "EvalOptions evaluate",
    "evaluation.preflight": "Diagnosis doctor",
    "evaluation.probes": "Probe suite",
    "experiments.collect": "read_results",
    "experiments.theory": "Theory measure_theory",
    "report.outcome": "Outcome",
    "report.render": "render",
    "nn.gradcam": "grad_cam",
    # Networks for other programs
    "experiments.export": "Exported export",
    # Networks combined after training
    "experiments.dial": "Dial dial",
    "experiments.ensemble": "FittedEnsemble fit_ensemble",
    "models.ensemble": "Ensemble OutputMix",
    "nn.mixture": "mix_weights",
    "report.dial": "DialPoint pick_point",
    # Data and networks
    "data": "Cifar10 Cifar100 DATASETS Embedded FashionMnist Folder ImageNet Mnist Npz Svhn TinyImageNet",
    "data.augment": "Chain ColorJitter CropFlip CutMix Cutout Mixup NoAugment ResizedCrop",
    "data.base": "Data Split",
    "data.extra": "Extra",
    "data.inputs.coerce": "as_data",
    "models": "MODELS",
    "models.logits_of": "LogitsOf",
    "models.resnet": "PreActResNet18 ResNet18 ResNet34",
    "models.resnet_imagenet": "ResNet50 WideResNet50",
    "models.small_cnn": "SmallCnn",
    "models.wide_resnet": "WideResNet",
    # Shared
    "distributed": "World",
    "errors": (
        "AllrounderError DataError Diverged InputError Interrupted MissingDataError PreflightError "
        "RecipeError RunError StorageError ThreatError WorldError"
    ),
    "rng": "Rng",
    "system.progress": "Progress ProgressEvent TrainingStatus",
}
"""The module of every public name, by concept."""
_MODULE_OF = {name: f"allrounder.{module}" for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("allrounder")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
