"""Studies: recipes that are trained with several seeds, evaluated alike and compared in one table."""
