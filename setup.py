"""Refuses to build a wheel: the project is read and run where it was cloned. `pip install -e ".[test]"` works."""
import sys

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Refuse(bdist_wheel):
    def run(self):
        sys.exit('error: nothing to install: clone the repository, and run `python gpt2_v3_kvcache.py "Once"` in it')


setup(cmdclass={"bdist_wheel": Refuse})
