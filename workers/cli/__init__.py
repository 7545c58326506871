"""The command line `turnpoint`: one module for each group of commands.

Begin with `workers.cli.app`.
"""
