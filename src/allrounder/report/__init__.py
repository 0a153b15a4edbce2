"""Reports: outcomes of evaluations, their statistics and tables. Depends on numpy, never on torch."""
