"""The sub-commands of ``capo``, one module each.

Each has ``add_parser(subparsers)``, which registers the sub-command and sets ``run`` to a function that takes
the parsed arguments and returns the exit code.
"""
