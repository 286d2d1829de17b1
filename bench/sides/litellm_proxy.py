"""The proxy of LiteLLM in one process, without a database: one model, and agents with limits.

``AGENT_LIMITS`` maps the name of an agent to the limits of its sessions. The name is also the key
of the agent; any other key has no limits. The model costs ``USD_PER_MILLION_IN`` and
``USD_PER_MILLION_OUT``; by default, only output costs anything: $100 for a million tokens.
"""

import json
import logging
import os
import secrets
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.serving import serve

logging.disable(logging.ERROR)  # it logs each refused call with a traceback
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LITELLM_TELEMETRY"] = "False"
os.environ.pop("DATABASE_URL", None)  # with one, it needs programs that are no Python packages
CARD = {
    "name": "racer",
    "description": "races",
    "url": "http://127.0.0.1:9",
    "version": "1",
    "protocolVersion": "1.0",
    "defaultInputModes": ["text"],
    "defaultOutputModes": ["text"],
    "capabilities": {},
    "skills": [],
}


def configuration() -> dict[str, Any]:
    """Return the content of its configuration file."""
    model = {
        "model": f"openai/{os.environ['MODEL']}",
        "api_base": os.environ["MODELS_URL"],
        "api_key": "none",
        "input_cost_per_token": float(os.environ.get("USD_PER_MILLION_IN", "0")) / 1e6,
        "output_cost_per_token": float(os.environ.get("USD_PER_MILLION_OUT", "100")) / 1e6,
    }
    agents = json.loads(os.environ.get("AGENT_LIMITS", "{}"))
    return {
        "model_list": [{"model_name": "small", "litellm_params": model}],
        "agents": [
            {"agent_name": name, "agent_card_params": CARD, "litellm_params": limits}
            for name, limits in agents.items()
        ],
        "general_settings": {
            "custom_auth": "bench.sides.litellm_proxy.authenticate",
            "master_key": f"sk-{secrets.token_hex(32)}",
        },
    }


async def authenticate(_: Any, api_key: str) -> Any:
    """Return the owner of a key."""
    registry = import_module("litellm.proxy.agent_endpoints.agent_registry").global_agent_registry
    agent = registry.get_agent_by_name(api_key)
    key = import_module("litellm.proxy._types").UserAPIKeyAuth
    owner = None if agent is None else agent.agent_id
    return key(api_key=api_key, agent_id=owner, user_role="proxy_admin")


def main() -> None:
    """Serve until the process ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(configuration()))
        os.environ["CONFIG_FILE_PATH"] = str(path)
        serve(import_module("litellm.proxy.proxy_server").app)


if __name__ == "__main__":
    main()
