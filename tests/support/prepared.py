"""What each start of a proxy computes anew, always with the same result: the commands with their options, the
routes' patterns and the OpenAPI document. Importing this module computes it once, and all copies of this
process have it (copied.py).
"""

from functools import cache
from types import SimpleNamespace

import typer.main

from shadeproxy import __version__
from shadeproxy.api.control.app import make_control_app
from shadeproxy.cli.main import app

typer.main.get_command = command_of = cache(typer.main.get_command)
command_of(app)
make_control_app(SimpleNamespace(version=__version__))
