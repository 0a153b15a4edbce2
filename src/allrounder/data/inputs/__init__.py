"""Conversion of user input to data: arrays, loaders, dataset objects, and names on the command line."""
