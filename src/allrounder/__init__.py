"""Allrounder trains image classifiers that are accurate and robust under several norms, and evaluates them.

Public names are loaded when they are first used, so `import allrounder` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allrounder.attacks import ATTACKS as ATTACKS
    from allrounder.attacks import Apgd as Apgd
    from allrounder.attacks import ApgdTrain as ApgdTrain
    from allrounder.attacks import Attack as Attack
    from allrounder.attacks import AutoAttack as AutoAttack
    from allrounder.attacks import Bpda as Bpda
    from allrounder.attacks import Cascade as Cascade
    from allrounder.attacks import CustomLoss as CustomLoss
    from allrounder.attacks import Cw as Cw
    from allrounder.attacks import EarlyStopPgd as EarlyStopPgd
    from allrounder.attacks import Fab as Fab
    from allrounder.attacks import Mim as Mim
    from allrounder.attacks import Msd as Msd
    from allrounder.attacks import Pgd as Pgd
    from allrounder.attacks import Restarts as Restarts
    from allrounder.attacks import Square as Square
    from allrounder.attacks import Transfer as Transfer
    from allrounder.attacks import WorstOf as WorstOf
    from allrounder.attacks import craft as craft
    from allrounder.attacks import perturb as perturb
    from allrounder.config.schedules import Constant as Constant
    from allrounder.config.schedules import Cosine as Cosine
    from allrounder.config.schedules import Cyclic as Cyclic
    from allrounder.config.schedules import EmaWarmup as EmaWarmup
    from allrounder.config.schedules import Linear as Linear
    from allrounder.config.schedules import Step as Step
    from allrounder.config.schedules import TimeConstant as TimeConstant
    from allrounder.config.time import Clock as Clock
    from allrounder.config.time import Time as Time
    from allrounder.data import DATASETS as DATASETS
    from allrounder.data import Embedded as Embedded
    from allrounder.data import Folder as Folder
    from allrounder.data import ImageNet as ImageNet
    from allrounder.data import Npz as Npz
    from allrounder.data import TinyImageNet as TinyImageNet
    from allrounder.data.augment import Chain as Chain
    from allrounder.data.augment import ColorJitter as ColorJitter
    from allrounder.data.augment import CropFlip as CropFlip
    from allrounder.data.augment import CutMix as CutMix
    from allrounder.data.augment import Cutout as Cutout
    from allrounder.data.augment import Mixup as Mixup
    from allrounder.data.augment import NoAugment as NoAugment
    from allrounder.data.augment import ResizedCrop as ResizedCrop
    from allrounder.data.base import Data as Data
    from allrounder.data.extra import Extra as Extra
    from allrounder.data.inputs.coerce import as_data as as_data
    from allrounder.distributed import World as World
    from allrounder.errors import DataError as DataError
    from allrounder.errors import Diverged as Diverged
    from allrounder.errors import Interrupted as Interrupted
    from allrounder.errors import PreflightError as PreflightError
    from allrounder.errors import RecipeError as RecipeError
    from allrounder.errors import RunError as RunError
    from allrounder.errors import ThreatError as ThreatError
    from allrounder.errors import WorldError as WorldError
    from allrounder.evaluation.evaluate import EvalOptions as EvalOptions
    from allrounder.evaluation.evaluate import evaluate as evaluate
    from allrounder.evaluation.preflight import Diagnosis as Diagnosis
    from allrounder.evaluation.preflight import doctor as doctor
    from allrounder.evaluation.probes import Probe as Probe
    from allrounder.evaluation.probes import suite as suite
    from allrounder.models import MODELS as MODELS
    from allrounder.models.resnet import PreActResNet18 as PreActResNet18
    from allrounder.models.resnet import ResNet18 as ResNet18
    from allrounder.models.resnet import ResNet34 as ResNet34
    from allrounder.models.resnet_imagenet import ResNet50 as ResNet50
    from allrounder.models.resnet_imagenet import WideResNet50 as WideResNet50
    from allrounder.models.small_cnn import SmallCnn as SmallCnn
    from allrounder.models.wide_resnet import WideResNet as WideResNet
    from allrounder.nn.gradcam import grad_cam as grad_cam
    from allrounder.nn.mixing import MIXES as MIXES
    from allrounder.nn.mixing import Ema as Ema
    from allrounder.nn.mixing import MixRule as MixRule
    from allrounder.nn.mixing import Uniform as Uniform
    from allrounder.objectives import OBJECTIVES as OBJECTIVES
    from allrounder.objectives import Adversarial as Adversarial
    from allrounder.objectives import Average as Average
    from allrounder.objectives import Eat as Eat
    from allrounder.objectives import Fat as Fat
    from allrounder.objectives import HalfHalf as HalfHalf
    from allrounder.objectives import Iat as Iat
    from allrounder.objectives import LogitPairing as LogitPairing
    from allrounder.objectives import Mart as Mart
    from allrounder.objectives import Natural as Natural
    from allrounder.objectives import Objective as Objective
    from allrounder.objectives import Part as Part
    from allrounder.objectives import RobustSelfTraining as RobustSelfTraining
    from allrounder.objectives import Score as Score
    from allrounder.objectives import Trades as Trades
    from allrounder.optim import UPDATES as UPDATES
    from allrounder.optim import Agr as Agr
    from allrounder.optim import Awp as Awp
    from allrounder.optim import CatastrophicOverfittingGuard as CatastrophicOverfittingGuard
    from allrounder.optim import Descend as Descend
    from allrounder.optim import GradientProjection as GradientProjection
    from allrounder.optim import ModeCurve as ModeCurve
    from allrounder.optim import Update as Update
    from allrounder.optim.optimizers import Adam as Adam
    from allrounder.optim.optimizers import AdamW as AdamW
    from allrounder.optim.optimizers import Sgd as Sgd
    from allrounder.recipe.compute import Compute as Compute
    from allrounder.recipe.init import FromRun as FromRun
    from allrounder.recipe.init import Random as Random
    from allrounder.recipe.init import Soup as Soup
    from allrounder.recipe.mix import Exchange as Exchange
    from allrounder.recipe.mix import Mix as Mix
    from allrounder.recipe.mix import Shares as Shares
    from allrounder.recipe.pipeline import PIPELINES as PIPELINES
    from allrounder.recipe.pipeline import ModeConnectivity as ModeConnectivity
    from allrounder.recipe.pipeline import SelfTraining as SelfTraining
    from allrounder.recipe.pipeline import Stage as Stage
    from allrounder.recipe.pipeline import WeightSoup as WeightSoup
    from allrounder.recipe.recipe import Recipe as Recipe
    from allrounder.recipe.recipe import Validation as Validation
    from allrounder.recipe.task import Task as Task
    from allrounder.report.outcome import Outcome as Outcome
    from allrounder.report.render import render as render
    from allrounder.rng import Rng as Rng
    from allrounder.system.progress import ProgressEvent as ProgressEvent
    from allrounder.threats.norms import L1 as L1
    from allrounder.threats.norms import L2 as L2
    from allrounder.threats.norms import Linf as Linf
    from allrounder.threats.threat import AnyOf as AnyOf
    from allrounder.threats.threat import Threat as Threat
    from allrounder.training.run import Run as Run
    from allrounder.training.run import load as load
    from allrounder.training.trainer import train as train

_MODULES = {
    # Recipes and training
    "recipe.recipe": "Recipe Validation",
    "recipe.task": "Task",
    "recipe.mix": "Exchange Mix Shares",
    "nn.mixing": "Ema MIXES MixRule Uniform",
    "recipe.init": "FromRun Random Soup",
    "recipe.pipeline": "ModeConnectivity PIPELINES SelfTraining Stage WeightSoup",
    "recipe.compute": "Compute",
    "training.trainer": "train",
    "training.run": "Run load",
    "config.schedules": "Constant Cosine Cyclic EmaWarmup Linear Step TimeConstant",
    "config.time": "Clock Time",
    # Objectives, updates and optimisers
    "objectives": (
        "Adversarial Average Eat Fat HalfHalf Iat LogitPairing Mart Natural OBJECTIVES Objective "
        "Part RobustSelfTraining Score Trades"
    ),
    "optim": "Agr Awp CatastrophicOverfittingGuard Descend GradientProjection ModeCurve UPDATES Update",
    "optim.optimizers": "Adam AdamW Sgd",
    # Threats and attacks
    "threats.norms": "L1 L2 Linf",
    "threats.threat": "AnyOf Threat",
    "attacks": (
        "ATTACKS Apgd ApgdTrain Attack AutoAttack Bpda Cascade CustomLoss Cw EarlyStopPgd Fab Mim "
        "Msd Pgd Restarts Square Transfer WorstOf craft perturb"
    ),
    # Evaluation and reports
    "evaluation.evaluate": "EvalOptions evaluate",
    "evaluation.preflight": "Diagnosis doctor",
    "evaluation.probes": "Probe suite",
    "report.outcome": "Outcome",
    "report.render": "render",
    "nn.gradcam": "grad_cam",
    # Data and networks
    "data": "DATASETS Embedded Folder ImageNet Npz TinyImageNet",
    "data.augment": "Chain ColorJitter CropFlip CutMix Cutout Mixup NoAugment ResizedCrop",
    "data.base": "Data",
    "data.extra": "Extra",
    "data.inputs.coerce": "as_data",
    "models": "MODELS",
    "models.resnet": "PreActResNet18 ResNet18 ResNet34",
    "models.resnet_imagenet": "ResNet50 WideResNet50",
    "models.small_cnn": "SmallCnn",
    "models.wide_resnet": "WideResNet",
    # Shared
    "distributed": "World",
    "errors": "DataError Diverged Interrupted PreflightError RecipeError RunError ThreatError WorldError",
    "rng": "Rng",
    "system.progress": "ProgressEvent",
}
"""The module of every public name, by concept."""
_MODULE_OF = {name: f"allrounder.{module}" for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
