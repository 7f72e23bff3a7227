import importlib

# By name, so that no module of the package imports the command line.
importlib.import_module("tessera.cli.main").main()
