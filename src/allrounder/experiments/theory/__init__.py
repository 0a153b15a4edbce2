"""Quantities of the theory of Generalist++, measured on a finished run."""

from allrounder.experiments.theory.claims import Claim as Claim
from allrounder.experiments.theory.claims import list_claims as list_claims
from allrounder.experiments.theory.measure import measure_theory as measure_theory
from allrounder.experiments.theory.quantities import Theory as Theory
from allrounder.experiments.theory.writing import write_theory as write_theory
