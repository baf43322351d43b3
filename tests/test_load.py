"""A short form of tools/load.py: ragged prompts in batches have the greedy ids that they have alone, or a tie."""
import json
import subprocess
import sys

import numpy as np
import pytest
from tiny import ROOT, random_model


@pytest.mark.slow
def test_60_ragged_prompts(tmp_path):
    arguments = ["--n_prompts", "60", "--seed", "2", "--out", tmp_path / "report.json"]
    command = [sys.executable, ROOT / "tools" / "load.py", *arguments]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=1800)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["lengths"][0] < 40 and report["lengths"][1] > 480
    versions = report["versions"]
    assert list(versions) == ["gpt2_v3_kvcache", "gpt2_v4_sampling", "gpt2_v5_exact"]
    for found in versions.values():
        assert found["n_ties"] == found["n_differing"]
        assert max(found["alone_memory"]) - min(found["alone_memory"]) < 20  # MB; all 0 where nobody tells
    assert versions["gpt2_v5_exact"]["n_differing"] == 0


def test_a_difference_is_looked_at_where_it_begins():
    """Ids that no rounding explains are no tie, and the two best of a step are."""
    from load import first_difference

    import gpt2_v3_kvcache as v3

    model = random_model(np.float32)
    prompt = [3, 1, 4]
    alone = v3.generate([prompt], model.params, model.n_head, 5)[0]
    other = next(i for i in range(model.n_vocab) if i != alone[2])
    found = first_difference(v3, model.params, model.n_head, prompt, alone, [*alone[:2], other, 0, 0])
    assert (found["step"], found["alone"], found["in the batch"], found["tie"]) == (2, alone[2], other, False)
    assert found["gap"] == pytest.approx(found["gap in float64"], abs=1e-4) and found["rounding"] < 1e-4
