"""The panel: pages to look at an agent's runs, and to ask (validation/panel/__main__.py)."""
