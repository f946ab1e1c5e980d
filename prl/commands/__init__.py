"""One module a command of the shell: ``HELP``, ``ABOUT``, ``EXAMPLES``, ``add_arguments(parser)``, ``run(arguments)``.

``cli.py`` finds them by name and gives each its parser. At the top of these modules nothing heavy is imported, since
``prl --help`` imports them all.
"""
