"""The command of the attack harness, with a planted fault, which the first argument names: of the proxy
(broken_proxy.py), of the origin or of what the harness knows of it; "none" for none.
"""

import sys
from pathlib import Path

from shadeproxy.demo import servers
from shadeproxy_bench.reliability.attack import __main__ as command
from shadeproxy_bench.reliability.attack import broken
from shadeproxy_bench.reliability.attack.origin import ScriptedOrigin, content
from shadeproxy_bench.reliability.attack.scripts import Says

_BROKEN = str(Path(__file__).parent / "broken_proxy.py")

fault = sys.argv.pop(1)
if fault == "a short body counts as whole":
    broken.BROKEN = [one._replace(says=Says.WHOLE) for one in broken.BROKEN if one.says is Says.SHORT]
elif fault == "the origin has other bytes":
    ScriptedOrigin.body_of = lambda _self, path: b"!" * len(content(path) or b"")
elif fault != "none":
    servers._SERVE = (sys.executable, _BROKEN, fault, "serve", "--config")
sys.exit(command.main())
