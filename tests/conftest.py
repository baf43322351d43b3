"""For all tests: no network, neither here nor in the commands that tests start; and one thread."""
import importlib.util
import os
from pathlib import Path

OFFLINE = Path(__file__).parent / "offline"

spec = importlib.util.spec_from_file_location("offline", OFFLINE / "sitecustomize.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))  # this process
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), os.environ.get("PYTHONPATH")]))  # others
os.environ["HF_HUB_OFFLINE"] = "1"  # for libraries with sockets of their own
# NumPy reads this when it is imported. Tiny models gain nothing from threads, which wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
