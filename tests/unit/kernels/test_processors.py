"""Which processors run which compiled kernels."""

import pytest

from penstock.kernels.compiler import native


def test_code_for_this_processor_runs():
    assert native.runs(native.processor())


def test_the_baseline_runs_only_where_all_its_features_are(monkeypatch):
    assert native.runs(native.baseline())
    has = dict.fromkeys(feature.removeprefix("+") for feature in native.baseline().partition(" ")[2].split(","))

    class Binding:
        def __init__(self, missing):
            self._features = {feature: feature != missing for feature in has}

        def get_host_cpu_name(self):
            return "some"

        def get_host_cpu_features(self):
            return Features(self._features)

    class Features(dict):
        def flatten(self):
            return ",".join(("+" if value else "-") + name for name, value in self.items())

    monkeypatch.setattr(native, "_llvm", lambda: Binding(""))
    assert native.runs(native.baseline())
    for feature in has:
        monkeypatch.setattr(native, "_llvm", lambda feature=feature: Binding(feature))
        assert not native.runs(native.baseline()), feature


def test_code_for_another_processor_does_not_run():
    assert not native.runs("znver9 +avx1024")


def test_an_architecture_without_a_baseline_is_named(monkeypatch):
    monkeypatch.setattr(native.platform, "machine", lambda: "s390x")
    with pytest.raises(ValueError, match="no baseline is known for s390x; known: x86_64, aarch64"):
        native.baseline()
    assert not native.runs("generic ")
