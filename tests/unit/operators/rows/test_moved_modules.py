"""Functions that a running job has pickled are loaded after our modules have moved."""

import importlib
import pickle

import pytest

import penstock as ps
from penstock.functions.moved_modules import MOVED
from penstock.operators.rows.user_functions import load_function


def test_a_class_by_its_earlier_path():
    named = b"cpenstock.operators.process_function\nKeyedProcessFunction\n."
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(named)
    assert load_function(named, "process 'p'") is ps.KeyedProcessFunction


@pytest.mark.parametrize("module", MOVED.values())
def test_the_present_paths_exist(module):
    importlib.import_module(module)
