"""Where laneway keeps what belongs to the person: keys and own models in the configuration folder, fetched lists in the cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def config_dir() -> Path:
    """Return the configuration folder: `LANEWAY_CONFIG_DIR`, `LANEWAY_HOME`, else the system's usual place. It need not exist."""
    return _dir(("LANEWAY_CONFIG_DIR", "LANEWAY_HOME"), "user_config_path", "XDG_CONFIG_HOME", ".config")


def cache_dir() -> Path:
    """Return the cache folder: `LANEWAY_CACHE_DIR`, `cache` in `LANEWAY_HOME`, else the system's usual place. It need not exist."""
    home = os.environ.get("LANEWAY_HOME", "").strip()
    if home and not os.environ.get("LANEWAY_CACHE_DIR", "").strip():
        return Path(home).expanduser() / "cache"
    return _dir(("LANEWAY_CACHE_DIR",), "user_cache_path", "XDG_CACHE_HOME", ".cache")


def _dir(ours: tuple[str, ...], usual: str, xdg: str, home: str) -> Path:
    named = next((value for name in ours if (value := os.environ.get(name, "").strip())), "")
    if named:
        return Path(named).expanduser()
    try:
        import platformdirs
    except ImportError:
        base = os.environ.get(xdg, "").strip()
        return (Path(base) if base and os.path.isabs(base) else Path.home() / home) / "laneway"
    return getattr(platformdirs, usual)("laneway", appauthor=False)
