"""An MCP server in a few lines, without any library: `call` returns its arguments, `stall` never answers."""

from __future__ import annotations

import json
import sys

for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params", {})
    if message["method"] == "tools/call" and params["name"] == "stall":
        continue
    found = {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": found}), flush=True)
